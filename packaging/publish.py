#!/usr/bin/env python3
"""Publishes a release that packaging/release.sh has made, as a release on GitHub.

Usage: packaging/publish.py [--dry-run] [DIRECTORY], by default target/packaging/release.

Checks it first, as packaging/verify.sh does. The repository is the one that the provenance names; the
commit must have been pushed there. The text is the version's section in CHANGELOG.md. Nobody sees the
release until all files are there: it is a draft before, and removed if something fails.

GITHUB_TOKEN is a token that may write the repository's contents. PUBLIC_KEY names the file of the
public key, by default packaging/release.pub. GITHUB_API_URL is the API of another server of GitHub.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
API = os.environ.get("GITHUB_API_URL", "https://api.github.com")
# Long enough for the largest file over a slow line.
SECONDS = 600


def call(method, url, body=None, media_type="application/json"):
    request = urllib.request.Request(url, body, method=method, headers={
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
        "Content-Type": media_type,
    })
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.loads(response.read() or "null")


def document(value):
    return json.dumps(value).encode()


def notes(version):
    """The section of CHANGELOG.md."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    if f"## {version}" not in lines:
        sys.exit(f"publish.py: CHANGELOG.md has no section \"{version}\"")
    section = lines[lines.index(f"## {version}") + 1:]
    ends = [number for number, line in enumerate(section) if line.startswith("## ")]
    return "\n".join(section[: ends[0] if ends else None]).strip() + "\n"


def release_in(directory):
    """What the provenance says, after a check of all files."""
    key = os.environ.get("PUBLIC_KEY", ROOT / "packaging/release.pub")
    if subprocess.run([ROOT / "packaging/verify.sh", key, directory]).returncode:
        sys.exit("publish.py: nothing was published")
    (file,) = directory.glob("*.provenance.json")
    statement = json.loads(file.read_text(encoding="utf-8"))
    missing = [one["name"] for one in statement["subject"] if not (directory / one["name"]).exists()]
    if missing:
        sys.exit(f"publish.py: the release lacks {', '.join(missing)}")
    definition = statement["predicate"]["buildDefinition"]
    return definition["externalParameters"], definition["resolvedDependencies"][0]["digest"]["gitCommit"]


def upload(url, file):
    content = file.read_bytes()
    asset = call("POST", f"{url}?name={urllib.parse.quote(file.name)}", content, "application/octet-stream")
    if asset["size"] != len(content):
        raise ValueError(f"{file.name} arrived with {asset['size']} bytes")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    # Older servers do not say it.
    if asset.get("digest") not in (None, digest):
        raise ValueError(f"{file.name} arrived as {asset['digest']}")
    print(f"{file.name}: uploaded")


def publish(releases, description, files):
    draft = call("POST", releases, document({**description, "draft": True}))
    try:
        for file in files:
            upload(draft["upload_url"].partition("{")[0], file)
        return call("PATCH", draft["url"], document({"draft": False}))["html_url"]
    except BaseException:
        call("DELETE", draft["url"])
        raise


def main(directory, dry_run):
    parameters, commit = release_in(directory)
    version = parameters["version"]
    repository = urllib.parse.urlsplit(parameters["repository"]).path.strip("/")
    releases = f"{API}/repos/{repository}/releases"
    description = {
        "tag_name": f"v{version}",
        "target_commitish": commit,
        "name": f"pillarbox {version}",
        "body": notes(version),
    }
    files = sorted(directory.iterdir())
    if dry_run:
        print(f"POST {releases}\n{json.dumps(description, indent=2)}")
        print("\n".join(f"upload {file.name}, {file.stat().st_size} bytes" for file in files))
        return
    if not os.environ.get("GITHUB_TOKEN"):
        sys.exit("publish.py: set GITHUB_TOKEN")
    try:
        print(publish(releases, description, files))
    except urllib.error.HTTPError as error:
        sys.exit(f"publish.py: {error.url} answered {error.code}: {error.read().decode(errors='replace')}")
    except (OSError, ValueError) as error:
        sys.exit(f"publish.py: {error}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    dry_run = arguments[:1] == ["--dry-run"]
    arguments = arguments[dry_run:]
    if len(arguments) > 1 or any(one.startswith("-") for one in arguments):
        sys.exit(__doc__)
    main(pathlib.Path(arguments[0] if arguments else ROOT / "target/packaging/release"), dry_run)
