#!/usr/bin/env python3
"""Runs the configurations of docs/reverse-proxy.md in Caddy, nginx and HAProxy, in front of `pillarbox dev`,
with nothing changed but addresses, paths and Caddy's authority.

Usage: tests/proxies.py PILLARBOX. Needs caddy, nginx, haproxy and openssl in PATH.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/reverse-proxy.md"
HOST = "mail.example.com"
# `max_request_bytes` by default.
LARGEST = 10 << 20
PATIENCE = 30
# A proxy that writes a body to a file is ended by this: its own files are smaller.
MOST_IN_A_FILE = 1 << 20


def check(holds, what):
    if not holds:
        sys.exit(f"proxies.py: {what}")


def block(language):
    """The configuration of a proxy as the page has it."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    check(len(found) == 1, f"the page has {len(found)} blocks of {language}")
    return found[0]


def changed(text, *changes):
    for before, after in changes:
        check(text.count(before) == 1, f"{before!r} is not there once")
        text = text.replace(before, after)
    return text


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def program(*command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def nginx(directory, upstream, port):
    server = changed(
        block("nginx"),
        ("127.0.0.1:8025", upstream),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/mail.crt", f"{directory}/mail.crt"),
        ("/etc/ssl/mail.key", f"{directory}/mail.key"),
    )
    paths = " ".join(
        f"{name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = directory / "nginx.conf"
    file.write_text(
        f"daemon off; pid {directory}/nginx.pid; events {{}}\n"
        f"http {{ access_log off; {paths}\n{server}}}\n"
    )
    return "nginx", "-e", "stderr", "-c", file


def haproxy(directory, upstream, port):
    file = directory / "haproxy.cfg"
    file.write_text(
        changed(
            block("haproxy"),
            ("127.0.0.1:8025", upstream),
            ("bind :443", f"bind 127.0.0.1:{port}"),
            ("/etc/haproxy/mail.pem", f"{directory}/mail.pem"),
        )
    )
    return "haproxy", "-db", "-f", file


def caddy(directory, upstream, port):
    site = f"{HOST} {{\n"
    file = directory / "Caddyfile"
    file.write_text(
        f"{{\nadmin off\nauto_https disable_redirects\nhttps_port {port}\n}}\n"
        + changed(
            block("caddyfile"),
            ("127.0.0.1:8025", upstream),
            (site, f"{site}tls {directory}/mail.crt {directory}/mail.key\n"),
        )
    )
    return "caddy", "run", "--adapter", "caddyfile", "--config", file


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_IN_A_FILE, MOST_IN_A_FILE))


class Client:
    """A client that sends through a proxy."""

    def __init__(self, directory, port, key):
        self.tls = ssl.create_default_context(cafile=directory / "mail.crt")
        self.port, self.key = port, key

    def call(self, method, path, body=None):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE)
        plain = socket.create_connection(("127.0.0.1", self.port))
        connection.sock = self.tls.wrap_socket(plain, server_hostname=HOST)
        headers = {"Authorization": f"Bearer {self.key}", "Host": HOST}
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def send(self, length):
        """Sends a message whose text has so many characters; returns the status."""
        message = {
            "from": "Shop <orders@example.com>",
            "to": ["Ada <ada@example.net>"],
            "subject": "Your order 1814",
            "text": "x" * length,
        }
        try:
            return self.call("POST", "/emails", message)[0]
        except OSError:
            # The proxy answered and closed the connection before it had read all.
            return 413

    def wait(self):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.call("GET", "/emails")
            except OSError:
                check(time.monotonic() < end, "the proxy does not start")
                time.sleep(0.05)


def main(pillarbox):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
            + ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
            + ["-keyout", "mail.key", "-out", "mail.crt"],
            cwd=directory,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        both = (directory / "mail.crt").read_text() + (directory / "mail.key").read_text()
        (directory / "mail.pem").write_text(both)
        listeners = ("--listen", "--operator-listen", "--smtp-listen")
        anywhere = [word for name in listeners for word in (name, "127.0.0.1:0")]
        with program(
            pillarbox, "dev", *anywhere, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as dev:
            lines = dict(address="", key="")
            while not all(lines.values()):
                line = dev.stdout.readline()
                check(line, "dev ended")
                if found := re.search(r"^ +address +http://(\S+)", line):
                    lines["address"] = found[1]
                if found := re.search(r"^ +API key +(\S+)", line):
                    lines["key"] = found[1]
            for proxy in (nginx, haproxy, caddy):
                try_proxy(proxy, directory, lines["address"], lines["key"])


def try_proxy(proxy, directory, upstream, key):
    port = free_port()
    environment = os.environ | {"HOME": str(directory)}
    with program(
        *proxy(directory, upstream, port),
        env=environment,
        preexec_fn=limit_files,
        stderr=subprocess.DEVNULL,
    ):
        client, name = Client(directory, port, key), proxy.__name__
        check(client.wait()[0] == 200, f"{name} does not pass the key on")
        for length, expected in ((10, 200), (LARGEST - 1024, 200), (LARGEST + 1024, 413)):
            status = client.send(length)
            check(status == expected, f"{name}: {status} for a text of {length} characters")
        status, feed = client.call("GET", "/events?limit=1")
        check(status == 200 and json.loads(feed)["events"], f"{name}: {status} from the feed")
        print(f"{name} passes on what it must, and no more.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
