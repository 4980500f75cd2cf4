# A mail that Python's own library builds and sends. Prints its bytes, as base64.
import base64
import os
import smtplib
import ssl
import sys
from email import policy
from email.message import EmailMessage

port, ca, start = int(sys.argv[1]), sys.argv[2], sys.argv[3]
message = EmailMessage(policy=policy.SMTP)
message["From"] = "Jürgen Groß <ann@example.com>"
message["To"] = "Bob <bob@example.org>, cy@example.org"
message["Subject"] = "Grüße ✉ " + "long " * 30
message["Message-ID"] = "<%s@example.com>" % start
message.set_content("Grüße\n.\n..\nFrom here on\n")
message.add_alternative("<p>Grüße</p>", subtype="html")
message.add_attachment(
    bytes(range(256)) * 20, maintype="application", subtype="pdf", filename="résumé.pdf"
)
context = ssl.create_default_context(cafile=ca)
if start == "starttls":
    client = smtplib.SMTP("localhost", port)
    client.starttls(context=context)
else:
    client = smtplib.SMTP_SSL("localhost", port, context=context)
client.login("anybody", os.environ["MAIL_KEY"])
recipients = ["bob@example.org", "cy@example.org", "hidden@example.org"]
given = b"Bcc: hidden@example.org\r\n" + message.as_bytes()
client.sendmail("ann@example.com", recipients, given)
client.quit()
print(base64.b64encode(given).decode())
