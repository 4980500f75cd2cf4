# A mail as authentik sends it by these settings: authentik/lib/config.py reads them, and the property
# `backend` of authentik/stages/email/models.py gives them to Django's own backend.
import sys

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.core.mail.backends.smtp import EmailBackend

with open(sys.argv[1]) as file:
    lines = [line.strip().split("=", 1) for line in file if not line.startswith("#")]
email = {name.removeprefix("AUTHENTIK_EMAIL__").lower(): value for name, value in lines}
settings.configure(DEFAULT_FROM_EMAIL=email.pop("from"))
backend = EmailBackend(
    host=email.pop("host"),
    port=int(email.pop("port")),
    username=email.pop("username"),
    password=email.pop("password"),
    use_tls=email.pop("use_tls", "false").lower() == "true",
    use_ssl=email.pop("use_ssl", "false").lower() == "true",
    timeout=int(email.pop("timeout", 10)),
)
assert not email, f"authentik does not know {email}"

mail = EmailMultiAlternatives(subject="Hello", body="Hi", to=["ada@example.net"])
assert backend.send_messages([mail]) == 1
