"""Send a message from Python 3, with nothing but the standard library.

    MAIL_KEY=pb_… python3 examples/send.py
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


def call(method, path, body=None):
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def no_answer(error):
    """Says what to do if the service does not answer."""
    print(f"No answer from {URL} ({error}).", file=sys.stderr)
    print("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.", file=sys.stderr)


def send(message):
    """Sends a message and returns its id. Repeats the request if that is necessary."""
    for attempt in range(TRIES):
        pause = min(60, 2**attempt) * random.random()
        try:
            return call("POST", "/emails", message)["id"]
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (408, 500, 503):
                error = json.load(refusal)["error"]
                raise ValueError(f"{error['code']}: {error['message']}") from refusal
            pause += int(refusal.headers.get("Retry-After", 0))
        except (OSError, http.client.HTTPException) as error:
            no_answer(error)  # The same key makes a repeat safe.
        time.sleep(pause)
    raise TimeoutError("pillarbox did not confirm the message; keep it and try again later")


if __name__ == "__main__":
    message_id = send({
        "from": "Shop <orders@example.com>",
        "to": ["Ada <ada@example.net>"],
        "subject": "Your order 1817",
        "text": "It is on its way.",
        "idempotencyKey": "order-1817-shipped",
    })
    print(message_id, call("GET", f"/emails/{message_id}")["status"])
