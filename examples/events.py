"""Follow the events of all messages from Python 3, with nothing but the standard library.

    MAIL_KEY=pb_… python3 examples/events.py
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("MAIL_URL", "http://127.0.0.1:8025")
KEY = os.environ["MAIL_KEY"]
CURSOR_FILE = os.environ.get("MAIL_CURSOR", "cursor.txt")
PAUSE = 5  # Seconds between two requests if there is nothing new.


def read_page(cursor):
    parameters = {"limit": 100} | ({"after": cursor} if cursor else {})
    url = f"{URL}/events?{urllib.parse.urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def no_answer(error):
    """Says what to do if the service does not answer."""
    print(f"No answer from {URL} ({error}).", file=sys.stderr)
    print("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.", file=sys.stderr)


def handle(event):
    """Put your own code here. After a crash, it gets some events again."""
    print(event["id"], event["type"], event["data"]["id"], flush=True)


def load_cursor():
    try:
        with open(CURSOR_FILE) as file:
            return file.read()
    except FileNotFoundError:
        return None  # The first start begins with the oldest event.


def save_cursor(cursor):
    with open(CURSOR_FILE + ".new", "w") as file:
        file.write(cursor)
    os.replace(CURSOR_FILE + ".new", CURSOR_FILE)


def follow():
    cursor = load_cursor()
    while True:
        try:
            page = read_page(cursor)
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (408, 500, 503):
                error = json.load(refusal)["error"]
                raise ValueError(f"{error['code']}: {error['message']}") from refusal
            time.sleep(int(refusal.headers.get("Retry-After", PAUSE)))
            continue
        except (OSError, http.client.HTTPException) as error:
            no_answer(error)
            time.sleep(PAUSE)
            continue
        for event in page["events"]:
            handle(event)
        # Store the cursor last: after a crash before this line, you get the same page again.
        cursor = page["next"]
        save_cursor(cursor)
        if not page["events"]:
            time.sleep(PAUSE)


if __name__ == "__main__":
    follow()
