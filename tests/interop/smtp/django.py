# A mail as an application of Django sends it. Prints the bytes that go over the wire, as base64.
import base64
import os
import smtplib

from django.conf import settings
from django.core.mail import EmailMultiAlternatives

RECIPE

settings.configure(**{name: value for name, value in globals().items() if name.isupper()})

given = []
send = smtplib.SMTP.data


def data(self, message):
    given.append(message)
    return send(self, message)


smtplib.SMTP.data = data
mail = EmailMultiAlternatives(
    subject="Grüße ✉",
    body="Grüße\n.\n..\nFrom here on\n",
    to=["Bob <bob@example.org>"],
    cc=["cy@example.org"],
    bcc=["hidden@example.org"],
    headers={"X-SES-CONFIGURATION-SET": "other"},
)
mail.attach_alternative("<p>Grüße</p>", "text/html")
mail.attach("résumé.pdf", bytes(range(256)) * 20, "application/pdf")
assert mail.send() == 1
print(base64.b64encode(given[0]).decode())
