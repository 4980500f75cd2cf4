#!/bin/sh
# Checks downloaded files of a release: that SHA256SUMS and the provenance are signed with the key, that
# the files are those that these two list, and that all of them were made from one commit.
#
# Usage: packaging/verify.sh PUBLIC_KEY [DIRECTORY], by default the working directory. The directory needs
# SHA256SUMS, pillarbox-VERSION.provenance.json and the signatures of both (.minisig).
#
# Needs minisign, sha256sum and Python 3.8.
set -eu

fail() { echo "verify.sh: $*" >&2; exit 1; }

[ $# -ge 1 ] || { echo "usage: verify.sh PUBLIC_KEY [DIRECTORY]" >&2; exit 2; }
key="$(realpath "$1")"
cd "${2:-.}"

signed="$(minisign -V -Q -p "$key" -m SHA256SUMS)" || fail "SHA256SUMS is not signed by this key"
case "$signed" in
    "pillarbox "*) version="${signed#pillarbox }" ;;
    *) fail "the signature is for something else: $signed" ;;
esac
provenance="pillarbox-$version.provenance.json"
[ "$(minisign -V -Q -p "$key" -m "$provenance")" = "$signed" ] \
    || fail "$provenance is not signed by this key for $signed"
sha256sum --check --strict --quiet --ignore-missing SHA256SUMS || fail "a file was changed"

python3 - "$provenance" <<'PYTHON'
import json
import os
import sys

provenance = sys.argv[1]
with open("SHA256SUMS", encoding="utf-8") as file:
    listed = {name: digest for digest, name in (line.split() for line in file)}
with open(provenance, encoding="utf-8") as file:
    statement = json.load(file)
there = {name for name in os.listdir() if name.startswith("pillarbox") and not name.endswith(".minisig")}
if unknown := sorted(there - listed.keys()):
    sys.exit(f"verify.sh: not a file of this release: {', '.join(unknown)}")
if there <= {provenance}:
    sys.exit("verify.sh: there is no file of the release here")
if statement["_type"] != "https://in-toto.io/Statement/v1":
    sys.exit(f"verify.sh: {provenance} is not a statement")
if statement["predicateType"] != "https://slsa.dev/provenance/v1":
    sys.exit(f"verify.sh: {provenance} states something else")
stated = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
if stated != {name: digest for name, digest in listed.items() if name != provenance}:
    sys.exit(f"verify.sh: {provenance} lists other files than SHA256SUMS")
sources = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
print(f"{sources['uri']}, commit {sources['digest']['gitCommit']}:")
print("\n".join(f"  {name}: good" for name in sorted(there)))
PYTHON
