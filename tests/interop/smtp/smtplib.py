# A mail that Python's own library builds and sends. Prints the bytes that go over the wire, as base64.
import base64
import os
import smtplib
import ssl
from email import policy
from email.message import EmailMessage

message = EmailMessage(policy=policy.SMTP)
message["From"] = "Jürgen Groß <orders@example.com>"
message["To"] = "Bob <bob@example.org>, cy@example.org"
message["Bcc"] = "hidden@example.org"
message["X-SES-CONFIGURATION-SET"] = "other"
message["Subject"] = "Grüße ✉ " + "long " * 30
message.set_content("Grüße\n.\n..\nFrom here on\n")
message.add_alternative("<p>Grüße</p>", subtype="html")
message.add_attachment(
    bytes(range(256)) * 20, maintype="application", subtype="pdf", filename="résumé.pdf"
)

given = []
send = smtplib.SMTP.data


def data(self, message):
    given.append(message)
    return send(self, message)


smtplib.SMTP.data = data

RECIPE

print(base64.b64encode(given[0]).decode())
