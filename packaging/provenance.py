#!/usr/bin/env python3
"""Writes how the files of a release were made, as an in-toto statement with SLSA's provenance.

Usage: packaging/provenance.py REPOSITORY VERSION FILE... >STATEMENT

REPOSITORY is the https address of the sources. What else the builds took is what the tools and git say
themselves. There is no time and no number of the run, so that the same sources and tools give the same
bytes.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

# In the image, and no part of the sources.
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
# The packages that the tools come from, and what tells their versions.
TOOLS = {
    "pkg:cargo/cargo-deb": ("cargo-deb", "--version"),
    "pkg:pypi/cargo-zigbuild": ("cargo-zigbuild", "--version"),
    "pkg:pypi/ziglang": (os.environ.get("CARGO_ZIGBUILD_ZIG_PATH", "python-zig"), "version"),
    # It has no option that tells it.
    "pkg:cargo/cargo-auditable": (
        "sed", "-n", "s/^readonly CARGO_AUDITABLE_VERSION=//p", "packaging/tools.sh"
    ),
}


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def sha256(file):
    return {"sha256": hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()}


def subject(file):
    return {"name": pathlib.Path(file).name, "digest": sha256(file)}


def compiler():
    said = dict(re.findall(r"^([\w-]+): (.*)$", output("rustc", "-vV"), re.MULTILINE))
    return {
        "uri": f"git+https://github.com/rust-lang/rust@{said['release']}",
        "digest": {"gitCommit": said["commit-hash"]},
    }


def tool(package, command):
    version = re.search(r"\d+\.\d+\.\d+\S*", output(*command)).group()
    return {"uri": f"{package}@{version}"}


def statement(repository, version, files):
    commit = output("git", "rev-parse", "HEAD").strip()
    tag = f"v{version}"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [subject(file) for file in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{repository}/blob/{tag}/packaging/build.sh",
                "externalParameters": {"repository": repository, "version": version},
                "internalParameters": {
                    "SOURCE_DATE_EPOCH": output("git", "log", "-1", "--format=%ct").strip()
                },
                "resolvedDependencies": [
                    {"uri": f"git+{repository}@{tag}", "digest": {"gitCommit": commit}},
                    compiler(),
                    *(tool(*one) for one in TOOLS.items()),
                    {"name": CERTIFICATES.name, "digest": sha256(CERTIFICATES)},
                ],
            },
            "runDetails": {
                "builder": {"id": f"{repository}/blob/{tag}/packaging/release.sh"},
            },
        },
    }


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    json.dump(statement(sys.argv[1], sys.argv[2], sys.argv[3:]), sys.stdout, indent=2)
    print()
