"""Send messages together, and see which of them are refused, with Python's standard library.

    MAIL_KEY=pb_… python3 examples/batch.py
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("MAIL_URL", "http://127.0.0.1:8025")
KEY = os.environ["MAIL_KEY"]
TRIES = 8


def send_all(messages):
    """Sends up to 100 messages, each with a key. Returns one answer for each, in the same order."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = json.dumps({"emails": messages, "partial": True}).encode()
    request = urllib.request.Request(URL + "/emails/batch", body, headers)
    for attempt in range(TRIES):
        pause = min(60, 2**attempt) * random.random()
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["emails"]
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (408, 500, 503):
                error = json.load(refusal)["error"]
                raise ValueError(f"{error['code']}: {error['message']}") from refusal
            pause += int(refusal.headers.get("Retry-After", 0))
        except (OSError, http.client.HTTPException) as error:
            # The same keys make a repeat safe.
            print(f"No answer from {URL} ({error}).", file=sys.stderr)
            print("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.", file=sys.stderr)
        time.sleep(pause)
    raise TimeoutError("pillarbox did not confirm the messages; keep them and try again later")


def message(order, to):
    return {
        "from": "Shop <orders@example.com>",
        "to": [to],
        "subject": f"Your order {order}",
        "text": "It is on its way.",
        "idempotencyKey": f"order-{order}-shipped",
    }


messages = [message(1826, "ada@example.net"), message(1827, "no address")]
for sent, answer in zip(messages, send_all(messages)):
    if "error" in answer:
        print(f"{sent['subject']} is refused: {answer['error']['message']}")
    else:
        print(f"{sent['subject']} is {answer['id']}")
