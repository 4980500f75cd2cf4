# Receive webhooks with Python 3 and the official library: pip install standardwebhooks
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
seen = set()  # An event can arrive twice: in production, keep its id in your database.


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event, status = webhook.verify(body, dict(self.headers)), 204
            if event["id"] not in seen:
                seen.add(event["id"])
                print(event["type"], event["data"].get("id"), flush=True)
        except WebhookVerificationError:
            status = 400
        self.send_response(status)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 4000))), Receiver).serve_forever()
