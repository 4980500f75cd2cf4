#!/usr/bin/env python3
"""Updates a small project from a registry of its own, with versions of all ages and an advisory.

Usage: packaging/update_test.py. Needs cargo, cargo-deny and git.
"""

import datetime
import functools
import hashlib
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import threading
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Name, version, age in days and what it needs.
CRATES = [
    ("calm", "1.0.0", 100, {}),
    ("calm", "1.1.0", 20, {}),
    ("calm", "1.2.0", 2, {}),
    ("ready", "1.0.0", 100, {}),
    ("ready", "1.0.1", 15, {}),
    ("early", "1.0.0", 100, {}),
    ("early", "1.0.1", 3, {}),
    ("early", "1.0.2", 1, {}),
    ("outer", "1.0.0", 100, {"inner": "=1.0.0"}),
    ("outer", "1.0.1", 3, {"inner": "=1.0.1"}),
    ("inner", "1.0.0", 100, {}),
    ("inner", "1.0.1", 3, {}),
    ("weak", "1.0.0", 100, {}),
    ("weak", "1.0.1", 1, {}),
]
BEFORE = {
    "calm": "1.0.0", "ready": "1.0.0", "early": "1.0.1", "outer": "1.0.1", "inner": "1.0.1",
    "weak": "1.0.0",
}
AFTER = {**BEFORE, "calm": "1.1.0", "ready": "1.0.1", "weak": "1.0.1"}
DATABASE = "https://advisories.invalid/database"
ADVISORY = """```toml
[advisory]
id = "RUSTSEC-2026-9999"
package = "weak"
date = "2026-01-01"

[versions]
patched = [">= 1.0.1"]
```

# It is weak

Made up for a test.
"""


def manifest(name, version, needs):
    head = f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2021"\n[dependencies]\n'
    return head + "".join(f'{need} = "{version}"\n' for need, version in needs.items())


def package(name, version, needs):
    """A crate as the registry serves it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, text in (("Cargo.toml", manifest(name, version, needs)), ("src/lib.rs", "")):
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def index_line(name, version, age, needs, content):
    published = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=age)
    deps = [
        {"name": need, "req": version, "features": [], "optional": False, "default_features": True,
         "target": None, "kind": "normal"}
        for need, version in needs.items()
    ]
    return json.dumps({
        "name": name, "vers": version, "deps": deps, "cksum": hashlib.sha256(content).hexdigest(),
        "features": {}, "yanked": False, "pubtime": published.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }) + "\n"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_registry(directory, address):
    write(directory / "config.json", json.dumps({"dl": f"{address}/crates/{{crate}}-{{version}}"}))
    for name in {crate[0] for crate in CRATES}:
        lines = ""
        for name, version, age, needs in (crate for crate in CRATES if crate[0] == name):
            content = package(name, version, needs)
            write(directory / f"crates/{name}-{version}", content)
            lines += index_line(name, version, age, needs, content)
        write(directory / name[:2] / name[2:4] / name, lines)


class Registry(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def git(directory, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, stdout=subprocess.DEVNULL)


def locked(project):
    packages = tomllib.loads((project / "Cargo.lock").read_text())["package"]
    return {one["name"]: one["version"] for one in packages if "source" in one}


def check(holds, what):
    if not holds:
        sys.exit(f"update_test.py: {what}")


def main(work):
    served, advisories, project = work / "registry", work / "advisories", work / "project"
    served.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Registry, directory=str(served))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    write_registry(served, address)
    write(advisories / "crates/weak/RUSTSEC-2026-9999.md", ADVISORY)
    git(advisories, "init", "--quiet", "--initial-branch=main")
    git(advisories, "add", ".")
    git(advisories, "commit", "--quiet", "--message=An advisory")
    own = f'replace-with = "own"\n[source.own]\nregistry = "sparse+{address}/"\n'
    write(work / "cargo/config.toml", f"[source.crates-io]\n{own}")
    needs = {name: "1" for name in BEFORE if name != "inner"}
    write(project / "Cargo.toml", manifest("project", "0.1.0", needs))
    write(project / "src/lib.rs", "")
    write(project / "deny.toml", f'[advisories]\ndb-path = "{work}/db"\ndb-urls = ["{DATABASE}"]\n')
    environment = {
        **os.environ,
        "CARGO_HOME": str(work / "cargo"),
        # cargo-deny wants an address with a host.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{advisories}.insteadOf",
        "GIT_CONFIG_VALUE_0": DATABASE,
    }

    def run(*command):
        return subprocess.run(
            command, cwd=project, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    run("cargo", "generate-lockfile")
    for name, version in BEFORE.items():
        run("cargo", "update", name, "--precise", version)
    check(locked(project) == BEFORE, f"the test begins with {locked(project)}")

    done = run(ROOT / "packaging/update.py", project)
    check(done.returncode == 0, done.stdout)
    check(locked(project) == AFTER, f"{locked(project)}: {done.stdout}")
    check("+ weak 1.0.1, " in done.stdout and "RUSTSEC-2026-9999" in done.stdout, done.stdout)

    # Without the advisory, the fix is a version as any other.
    run("cargo", "update", "weak", "--precise", "1.0.0")
    git(advisories, "rm", "--quiet", "-r", "crates")
    write(advisories / "README.md", "Empty.")
    git(advisories, "add", ".")
    git(advisories, "commit", "--quiet", "--message=No advisory")
    done = run(ROOT / "packaging/update.py", project)
    check(done.returncode == 0, done.stdout)
    check(locked(project)["weak"] == "1.0.0", f"a version of yesterday was taken: {done.stdout}")
    print("Only versions of 14 days, and the fix, were taken.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        main(pathlib.Path(work))
