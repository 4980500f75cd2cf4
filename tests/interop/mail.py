"""Builds mail from what the provider got, as SES does from simple content, and reads it with
Python's email package: every name, address and header is the one that was posted."""

import json
import sys
from email import message_from_bytes
from email.policy import default

expected_file, got_file = sys.argv[1:]
expected = json.load(open(expected_file, encoding="utf-8"))
policy = default.clone(max_line_length=None)
LISTS = {"To": "ToAddresses", "Cc": "CcAddresses", "Bcc": "BccAddresses"}


def words(name):
    """A run of white space folds into one space: of any white space, as the package does it."""
    return " ".join(name.split())


def squeezed(mailboxes):
    return [["".join(name.split()), local, domain] for name, local, domain in mailboxes]


def found(message, header):
    value = message[header]
    assert value is None or not value.defects, (header, str(value), value.defects)
    addresses = [] if value is None else value.addresses
    return [[words(a.display_name), a.username, a.domain] for a in addresses]


count = 0
numbers = set()
for line in open(got_file, "rb"):
    request = json.loads(line)
    simple = request["Content"]["Simple"]
    headers = {header["Name"]: header["Value"] for header in simple["Headers"]}
    number = int(headers["X-Number"])
    numbers.add(number)
    want = expected[number]
    lines = ["From: " + request["FromEmailAddress"]]
    for header, key in LISTS.items():
        if request["Destination"].get(key):
            lines.append(f"{header}: " + ", ".join(request["Destination"][key]))
    lines.append("Reply-To: " + ", ".join(request["ReplyToAddresses"]))
    lines += [f"{name}: {value}" for name, value in headers.items()]
    for text in lines:
        assert text.isascii() and text.isprintable(), text
    message = message_from_bytes("\r\n".join([*lines, "", ""]).encode(), policy=policy)
    assert not message.defects and len(message.keys()) == len(lines), (lines, message.keys())
    for header in ["From", "Reply-To", *LISTS]:
        wanted = [[words(name), local, domain] for name, local, domain in want[header]]
        got = found(message, header)
        if any("?= =?" in text for text in lines if text.startswith(header + ":")):
            # The package leaves the space between two encoded words, against RFC 2047 section 6.2.
            wanted, got = squeezed(wanted), squeezed(got)
        assert got == wanted, (number, lines, got, wanted)
        count += len(got)
    assert simple["Subject"] == {"Data": want["Subject"], "Charset": "UTF-8"}, simple["Subject"]
    for name, value in want["headers"].items():
        # Where the package reads a structure of its own, the text is compared.
        assert headers[name] == value and message[name].replace("\r\n", "") == value, (name, value)
assert numbers == set(range(len(expected))), "some messages never came"
print(f"{len(numbers)} messages, {count} addresses")
