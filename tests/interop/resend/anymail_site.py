"""A Django site that sends through django-anymail's Resend backend, and takes its webhooks.

It sends on each line that it reads, serves the webhook view, and prints what it is told.
"""

import os
import sys
import threading
from email.mime.image import MIMEImage
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="none",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    EMAIL_BACKEND="anymail.backends.resend.EmailBackend",
    ANYMAIL={
        "RESEND_API_KEY": os.environ["RESEND_API_KEY"],
        "RESEND_API_URL": os.environ["RESEND_BASE_URL"],
        "RESEND_SIGNING_SECRET": os.environ["WEBHOOK_SECRET"],
    },
)
django.setup()

from anymail.exceptions import AnymailRequestsAPIError  # noqa: E402
from anymail.message import AnymailMessage  # noqa: E402
from anymail.signals import tracking  # noqa: E402
from anymail.webhooks.resend import ResendTrackingWebhookView  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.urls import path  # noqa: E402

urlpatterns = [path("hook", ResendTrackingWebhookView.as_view())]


def told(sender, event, esp_name, **kwargs):
    print("told", event.event_type, event.recipient, event.reject_reason, event.message_id, flush=True)


tracking.connect(told)


class Quiet(WSGIRequestHandler):
    def log_message(self, *arguments):
        pass


server = make_server("127.0.0.1", int(os.environ["PORT"]), get_wsgi_application(), handler_class=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()


def message(to, **more):
    return AnymailMessage("Hello", "Hi", "Ann <ann@example.com>", to, **more)


for line in sys.stdin:
    full = message(
        [line.strip()],
        cc=["success@simulator.amazonses.com"],
        reply_to=["desk@example.com", "Ann <ann@example.com>"],
        headers={"X-Order": "1815", "References": "<1@example.com>"},
    )
    full.attach_alternative("<p>Hi</p>", "text/html")
    full.attach("notes.txt", "Grüße", "text/plain")
    full.attach("data.bin", b"\x00\xff", "application/octet-stream")
    image = MIMEImage(b"\x89PNG", "png")
    image.add_header("Content-Disposition", "inline", filename="logo.png")
    image.add_header("Content-ID", "<logo>")
    full.attach(image)
    full.metadata = {"order": "1815"}
    full.tags = ["receipt"]
    full.send()
    print("sent", full.anymail_status.message_id, flush=True)
    batch = message(["ooto@simulator.amazonses.com", "success@simulator.amazonses.com"])
    batch.merge_metadata = {"ooto@simulator.amazonses.com": {"a": 1}, "success@simulator.amazonses.com": {"a": 2}}
    batch.send()
    print("batch", len(batch.anymail_status.message_id), flush=True)
    try:
        message(["a@example.org"], bcc=[f"b{n}@example.org" for n in range(50)]).send()
    except AnymailRequestsAPIError as error:
        print("refused", error.status_code, flush=True)
