"""Send a file and show a picture in the HTML, with nothing but Python's standard library.

    MAIL_KEY=pb_… python3 examples/attach.py invoice.pdf logo.png
"""

import base64
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request

URL = os.environ.get("MAIL_URL", "http://127.0.0.1:8025")
KEY = os.environ["MAIL_KEY"]


def attachment(path, **more):
    path = pathlib.Path(path)
    content = base64.b64encode(path.read_bytes()).decode()
    return {"filename": path.name, "content": content, **more}


if len(sys.argv) != 3:
    sys.exit("Name two files: python3 examples/attach.py invoice.pdf logo.png")
invoice, logo = sys.argv[1:]
message = {
    "from": "Shop <orders@example.com>",
    "to": ["Ada <ada@example.net>"],
    "subject": "Your invoice 1820",
    "html": '<img src="cid:logo"><p>Your invoice is attached.</p>',
    "attachments": [attachment(invoice), attachment(logo, content_id="logo")],
    "metadata": {"invoice": "1820"},
    "idempotencyKey": "invoice-1820",
}
headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
request = urllib.request.Request(URL + "/emails", json.dumps(message).encode(), headers)
try:
    with urllib.request.urlopen(request, timeout=60) as response:
        print(json.load(response)["id"])
except urllib.error.HTTPError as refusal:
    error = json.load(refusal)["error"]
    sys.exit(f"{error['code']}: {error['message']}")
except OSError as error:
    print(f"No answer from {URL} ({error}).", file=sys.stderr)
    sys.exit("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.")
