"""A stand-in for SES that writes down what it takes.

A part of its own and not pillarbox's simulator, so that it goes on while everything of pillarbox is
killed, and shares nothing with it.
"""

import base64
import email
import email.header
import http.server
import json
import threading
import time

PORT = 9100


class Provider:
    """Answers after `latency` seconds."""

    def __init__(self, history):
        self.latency = 0.05
        # When each call for a message began and ended, in microseconds; not yet ended: None. It ends
        # when its answer is given, or cannot be.
        self.calls = {}
        self._history = history
        self._lock = threading.Lock()
        server = _Server(("127.0.0.1", PORT), _handler(self))
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def take(self, call):
        """Takes a message, as SES does, before the caller has its answer."""
        tags = {tag["Name"]: tag["Value"] for tag in call.get("EmailTags", [])}
        content = call["Content"]
        if "Simple" in content:
            subject = content["Simple"]["Subject"]["Data"]
        else:
            raw = email.message_from_bytes(base64.b64decode(content["Raw"]["Data"]))
            subject = str(email.header.make_header(email.header.decode_header(raw["Subject"])))
        destination = call.get("Destination", {})
        recipients = [one for kind in ("To", "Cc", "Bcc") for one in destination.get(f"{kind}Addresses") or []]
        message = tags["pillarbox-message-id"]
        timing = {"began": self._history.now(), "ended": None}
        self._history.write(
            "provider", at=timing["began"], organisation=tags["pillarbox-organisation"],
            id=message, subject=subject, recipients=recipients,
        )
        with self._lock:
            self.calls.setdefault(message, []).append(timing)
        return message, timing

    def end(self, timing):
        timing["ended"] = self._history.now()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request, client_address):
        """A caller that was killed is no fault of this program."""


ACCOUNT = {
    "EnforcementStatus": "HEALTHY",
    "ProductionAccessEnabled": True,
    "SendQuota": {"Max24HourSend": -1, "MaxSendRate": 5000, "SentLast24Hours": 0},
    "SendingEnabled": True,
}


def _handler(provider):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self):
            self._reply(ACCOUNT if self.path == "/v2/email/account" else {})

        def do_POST(self):
            # A call whose end never came was not made.
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) < int(self.headers["Content-Length"]):
                self.close_connection = True
                return
            message, timing = provider.take(json.loads(body))
            time.sleep(provider.latency)
            try:
                self._reply({"MessageId": f"ses-{message}"})
            finally:
                provider.end(timing)

        def _reply(self, document):
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler
