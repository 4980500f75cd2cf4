#!/usr/bin/env python3
"""Publishes a release to a stand-in of GitHub's API, which takes it, loses a byte, or fails.

Usage: packaging/publish_test.py DIRECTORY, with the environment that packaging/publish.py takes.
"""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASES = "/repos/example/pillarbox/releases"
TOKEN = "token-of-the-test"


class GitHub(http.server.BaseHTTPRequestHandler):
    """What GitHub's reference says of these calls: an upload has another address than the API."""

    def answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        there, body = self.server, self.body()
        url = urllib.parse.urlsplit(self.path)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, {"message": "Bad credentials"})
        if url.path == RELEASES:
            there.release = {**json.loads(body), "files": {}}
            address = f"http://127.0.0.1:{there.server_port}"
            return self.answer(201, {
                "url": f"{address}{RELEASES}/7",
                "upload_url": f"{address}/uploads/7/assets{{?name,label}}",
            })
        if url.path != "/uploads/7/assets":
            return self.answer(404, {"message": "Not Found"})
        (name,) = urllib.parse.parse_qs(url.query)["name"]
        if there.fault == "refuse" and name == "SHA256SUMS.minisig":
            return self.answer(422, {"message": "Validation Failed"})
        content = body[1:] if there.fault == "lose" else body
        there.release["files"][name] = content
        return self.answer(201, {"size": len(content)})

    def do_PATCH(self):
        self.server.release.update(json.loads(self.body()))
        self.answer(200, {"html_url": "https://github.com/example/pillarbox/releases/tag/v1"})

    def do_DELETE(self):
        self.server.release = None
        self.answer(204)

    def log_message(self, *_):
        pass


def check(holds, what):
    if not holds:
        sys.exit(f"publish_test.py: {what}")


def publish(server, directory, *arguments, token=TOKEN):
    server.release = None
    done = subprocess.run(
        [ROOT / "packaging/publish.py", *arguments, directory],
        env={**os.environ, "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "GITHUB_TOKEN": token},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return done.returncode, done.stdout


def main(directory):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    server.fault = None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    content = {file.name: file.read_bytes() for file in directory.iterdir()}

    code, said = publish(server, directory, "--dry-run", token="")
    check(code == 0 and server.release is None, f"the dry run did something: {said}")
    check(all(f"upload {name}, {len(bytes)} bytes" in said for name, bytes in content.items()), said)

    code, said = publish(server, directory)
    check(code == 0, said)
    check(server.release["files"] == content, "other files were published")
    check(server.release["draft"] is False, "the release is still a draft")
    check(server.release["body"].strip(), "the release has no text")
    check(server.release["tag_name"] in said or "/tag/" in said, said)

    for fault, reason in (("refuse", "answered 422"), ("lose", "arrived with")):
        server.fault = fault
        code, said = publish(server, directory)
        check(code != 0 and reason in said, f"published in spite of {fault}: {said}")
        check(server.release is None, "half a release is left")
    server.fault = None
    code, said = publish(server, directory, token="wrong")
    check(code != 0 and "answered 401" in said, said)

    with tempfile.TemporaryDirectory() as copy:
        changed = pathlib.Path(shutil.copytree(directory, copy, dirs_exist_ok=True))
        package = next(changed.glob("*.deb"))
        package.write_bytes(package.read_bytes()[:-1])
        code, said = publish(server, changed)
        check(code != 0 and "nothing was published" in said, f"a changed file was published: {said}")
        package.unlink()
        code, said = publish(server, changed)
        check(code != 0 and "lacks" in said, f"half a release was published: {said}")
        check(server.release is None, "something was published")
    print("The release was published once, and nothing else.")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
