#!/usr/bin/env python3
"""Holds a bill of materials against CycloneDX's schema, Cargo.lock and the binary itself.

Usage: packaging/sbom_test.py FILE BINARY. Needs cyclonedx-python-lib[json-validation] and readelf.
"""

import json
import re
import subprocess
import sys
import tomllib
import zlib

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

# Where the compiler found a source file: panics name it.
SOURCE = re.compile(rb"/registry/src/[^/]+/([A-Za-z0-9_-]+)-(\d+\.\d+\.\d+[A-Za-z0-9.+-]*)/")
# Fewer in a binary of this size would mean that the pattern is out of date.
FEWEST = 30

file, binary = sys.argv[1:]
with open(file, encoding="utf-8") as opened:
    text = opened.read()
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error is not None:
    sys.exit(f"{file} is no CycloneDX document: {error}")
document = json.loads(text)
named = {(one["name"], one["version"]): one for one in document["components"]}
if len(named) != len(document["components"]):
    sys.exit(f"{file} names a crate twice")

with open("Cargo.lock", "rb") as opened:
    locked = {(one["name"], one["version"]): one for one in tomllib.load(opened)["package"]}
for crate, one in named.items():
    if crate not in locked:
        sys.exit(f"{file} names {crate}, which is not in Cargo.lock")
    # The project's own crates have none.
    stated = [entry["content"] for entry in one.get("hashes", [])]
    checksum = locked[crate].get("checksum")
    if stated != ([checksum] if checksum else []):
        sys.exit(f"{file} has another hash of {crate} than Cargo.lock")

with open(binary, "rb") as opened:
    content = opened.read()
there = {(name.decode(), version.decode()) for name, version in SOURCE.findall(content)}
if len(there) < FEWEST:
    sys.exit(f"only {len(there)} crates are to be seen in {binary}")
if missing := sorted(there - named.keys()):
    sys.exit(f"{file} does not name what is in {binary}: {missing}")

# What `cargo auditable` put into the binary, for tools that look for known vulnerabilities.
# readelf knows the binaries of every architecture; objcopy does not.
sections = subprocess.run(
    ["readelf", "--wide", "--section-headers", binary], check=True, capture_output=True, text=True
).stdout
place = re.search(r" \.dep-v0 +PROGBITS +[0-9a-f]+ +([0-9a-f]+) +([0-9a-f]+) ", sections)
if not place:
    sys.exit(f"{binary} has no list of its own")
offset, size = (int(number, 16) for number in place.groups())
audited = json.loads(zlib.decompress(content[offset : offset + size]))["packages"]
# Without a kind it is in the binary; macros and what builds it are of the kind "build". The list can have
# more than the binary: it knows no difference between features of programs and of tests.
audited = {
    (one["name"], one["version"])
    for one in audited
    if one.get("kind", "runtime") == "runtime" and not one.get("root")
}
if missing := sorted(named.keys() - audited):
    sys.exit(f"the binary's own list lacks {missing}")
if unknown := sorted(audited - locked.keys()):
    sys.exit(f"the binary's own list names {unknown}, which are not in Cargo.lock")
edges = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
root, reached = document["metadata"]["component"]["bom-ref"], set()
waiting = [root]
while waiting:
    crate = waiting.pop()
    if crate not in reached:
        reached.add(crate)
        waiting.extend(edges[crate])
if unreached := sorted({one["bom-ref"] for one in named.values()} - reached):
    sys.exit(f"{file} does not say who needs {unreached}")
print(f"{len(named)} crates are named; {len(there)} of them are to be seen in the binary.")
