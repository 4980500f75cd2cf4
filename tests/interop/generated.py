"""Sends a message and reads it with a client that was generated from the API's description."""

import sys
import time

from mail_client import AuthenticatedClient
from mail_client.api.emails import get_email, list_email_events, list_emails, send_email
from mail_client.api.events import list_events
from mail_client.models import Error, FeedEventType, Message, SendRequest, Status

base, key = sys.argv[1:]
body = SendRequest(
    from_="Shop <orders@example.com>",
    to=["Ada <success@simulator.amazonses.com>"],
    subject="Your order 1815",
    text="It is on its way.",
)
with AuthenticatedClient(base_url=base, token=key) as client:
    accepted = send_email.sync(client=client, body=body)
    end = time.monotonic() + 60
    while True:
        message = get_email.sync(accepted.id, client=client)
        assert isinstance(message, Message), message
        events = list_email_events.sync(accepted.id, client=client).events
        if events:
            break
        assert time.monotonic() < end, message
        time.sleep(0.1)
    assert message.status == Status.SENT, message
    assert message.subject == body.subject and message.to == body.to, message
    assert [event.type_.value for event in events] == ["delivery"], events
    page = list_emails.sync(client=client, status=Status.SENT)
    assert [listed.id for listed in page.emails] == [accepted.id], page

    feed = list_events.sync(client=client, limit=100)
    types = [event.type_ for event in feed.events]
    assert types == [FeedEventType.EMAIL_SENT, FeedEventType.EMAIL_DELIVERY], feed
    assert feed.events[0].data.ses_message_id == message.ses_message_id, feed
    assert feed.events[1].data.event == events[0], feed
    deliveries = list_events.sync(client=client, types=[FeedEventType.EMAIL_DELIVERY])
    assert [event.id for event in deliveries.events] == [feed.events[1].id], deliveries
    assert list_events.sync(client=client, after=feed.next_).events == [], feed

    body.from_ = "orders@another.example"
    refused = send_email.sync_detailed(client=client, body=body)
    assert refused.status_code == 422 and isinstance(refused.parsed, Error), refused
    assert refused.parsed.error.code.value == "UnverifiedDomain", refused
print("all as described")
