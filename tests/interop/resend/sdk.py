"""Resend's official SDK for Python through pillarbox: every field, batches, lists, and its own errors.

Arguments: the listener; one that loses the first answer; one whose queue fills. The keys are in
RESEND_API_KEY and, for the last one, FULL_API_KEY.
"""

import base64
import os
import sys

import resend
from resend.exceptions import (
    InvalidApiKeyError,
    MissingRequiredFieldsError,
    ResendError,
    ValidationError,
)

BASE, LOSSY, FULL = sys.argv[1:]
resend.api_url = BASE


def email(**more):
    return {"from": "Ann <ann@example.com>", "to": "bob@example.org", "subject": "Hello", "text": "Hi", **more}


def refused(kind, status, name, call):
    try:
        answer = call()
    except kind as error:
        assert (error.code, error.error_type) == (status, name), (error.code, error.error_type, error.message)
        assert type(error) is kind, type(error)
        return error
    raise AssertionError(f"{name} is not refused: {answer}")


def send(options=None, **more):
    return resend.Emails.send(email(**more), options)


sent = send(
    to=["bob@example.org", "Eve <eve@example.org>"],
    cc=["carol@example.org"],
    bcc="dave@example.org",
    reply_to=["desk@example.com", "ann@example.com"],
    subject="python: every field",
    html='<p>Hi</p><img src="cid:logo">',
    headers={"X-Order": "1815", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"},
    tags=[{"name": "kind", "value": "receipt"}],
    attachments=[
        {"filename": "bytes.txt", "content": list(b"bytes")},
        {"filename": "base64.txt", "content": base64.b64encode(b"base64").decode(), "content_type": "text/plain"},
        {"filename": "logo.png", "content": list(b"\x89PNG"), "content_id": "logo"},
    ],
)
record = resend.Emails.get(sent["id"])
assert record["id"] == sent["id"] and record["object"] == "email", record
assert record["to"][1] == "Eve <eve@example.org>" and len(record["to"]) == 4, record
assert record["last_event"] in ("queued", "sent") and record["html"] is None, record
assert record["tags"] == [{"name": "kind", "value": "receipt"}], record
assert record.http_headers["x-request-id"], record

batch = resend.Batch.send([email(), email(subject="Second")])
assert len(batch["data"]) == 2, batch
batch = resend.Batch.send([email(), email(subject="")], {"batch_validation": "permissive"})
assert len(batch["data"]) == 1 and batch["errors"][0]["index"] == 1, batch
refused(MissingRequiredFieldsError, 422, "missing_required_field", lambda: resend.Batch.send([email(), {"to": "a@x.org"}]))
first = resend.Batch.send([email(), email()], {"idempotency_key": "python batch"})
again = resend.Batch.send([email(), email()], {"idempotency_key": "python batch"})
assert first["data"] == again["data"] and first["data"][0] != first["data"][1], again

page = resend.Emails.list({"limit": 2})
assert page["has_more"] and len(page["data"]) == 2, page
older = resend.Emails.list({"limit": 100, "after": page["data"][1]["id"]})
assert sent["id"] in [one["id"] for one in older["data"]], older
newer = resend.Emails.list({"limit": 2, "before": older["data"][0]["id"]})
assert [one["id"] for one in newer["data"]] == [one["id"] for one in page["data"]], newer

refused(MissingRequiredFieldsError, 422, "missing_required_field", lambda: send(subject=None))
refused(ResendError, 403, "validation_error", lambda: send(**{"from": "ann@other.example"}))
error = refused(ValidationError, 422, "validation_error", lambda: send(to="gone@example.org"))
assert "suppressed" in error.message, error.message
error = refused(ValidationError, 422, "validation_error", lambda: send(scheduled_at="in 1 hour"))
assert "scheduled_at" in error.message, error.message
refused(ResendError, 422, "invalid_attachment", lambda: send(attachments=[{"filename": "a.txt", "path": "https://x"}]))
refused(ResendError, 400, "invalid_idempotency_key", lambda: send({"idempotency_key": "k" * 257}))
refused(ResendError, 404, "not_found", lambda: resend.Emails.get("00000000-0000-7000-8000-000000000000"))
refused(ResendError, 404, "not_found", lambda: resend.Emails.Attachments.list(sent["id"]))
refused(ResendError, 404, "not_found", lambda: resend.Suppressions.list())

# The answer to the first request is lost, and the client repeats it.
resend.api_url = LOSSY
lost = {"idempotency_key": "python lost"}
refused(ResendError, 500, "HttpClientError", lambda: send(lost, subject="python: lost answer"))
repeated = send(lost, subject="python: lost answer")
resend.api_url = BASE
assert send(lost, subject="python: lost answer")["id"] == repeated["id"]

resend.api_url, resend.api_key = FULL, os.environ["FULL_API_KEY"]
for _ in range(100):
    try:
        send(text="x" * 2000)
    except ResendError as error:
        assert (error.code, error.error_type) == (503, "application_error"), error.message
        assert int(error.headers["retry-after"]) > 0, error.headers
        break
else:
    raise AssertionError("the queue never fills")
waiting = resend.Emails.list({"limit": 1})["data"][0]
assert resend.Emails.cancel(waiting["id"])["id"] == waiting["id"]
assert resend.Emails.get(waiting["id"])["last_event"] == "canceled"
resend.api_url = BASE
resend.api_key = "re_wrong"
refused(InvalidApiKeyError, 403, "invalid_api_key", send)
print("all as expected")
