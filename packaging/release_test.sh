#!/usr/bin/env bash
# Makes a release of what packaging/build.sh has built, with a key for one time, and tries to pass off
# other files as that release. Then publishes it to a stand-in of GitHub.
#
# Usage: packaging/release_test.sh, after packaging/build.sh. Needs minisign and packaging/tools.sh's tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source packaging/tools.sh

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
readonly RELEASE=target/packaging/release
export REPOSITORY=https://github.com/example/pillarbox
export PUBLIC_KEY="$work/key.pub"

fail() { echo "release_test.sh: $*" >&2; exit 1; }
new_key() { minisign -G -W -p "$work/$1.pub" -s "$work/$1" >/dev/null; }
sign() { minisign -S -s "$work/key" -t "$version" -m "$@"; }

# A copy of the release, to be changed.
download() { rm -rf "$work/download"; cp -r "$RELEASE" "$work/download"; }

# The copy is refused for this reason.
refused() {
    if packaging/verify.sh "${key:-$PUBLIC_KEY}" "$work/download" >"$work/said" 2>&1; then
        fail "accepted, although: $1"
    fi
    grep -q "$1" "$work/said" || { cat "$work/said" >&2; fail "not refused because: $1"; }
}

flip() {
    python3 -c 'import sys
with open(sys.argv[1], "r+b") as file:
    content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    file.seek(0)
    file.write(content)' "$1"
}

echo "== twice the same"
new_key key
new_key other
packaging/release.sh --built "$work/key"
cp -r "$RELEASE" "$work/first"
packaging/release.sh --built "$work/key" >/dev/null
diff -r "$work/first" "$RELEASE" || fail "the second release has other bytes"
version="$(minisign -V -Q -p "$PUBLIC_KEY" -m "$RELEASE/SHA256SUMS")"

echo "== the statement"
install_python in-toto-attestation "$IN_TOTO_VERSION" python
"$TOOLS/in-toto-attestation-$IN_TOTO_VERSION/bin/python" packaging/provenance_test.py \
    "$RELEASE"/pillarbox-*.provenance.json

echo "== what was changed is refused"
for file in "$RELEASE"/pillarbox*.{deb,tar.gz,oci.tar,cdx.json}; do
    download
    flip "$work/download/${file##*/}"
    refused "a file was changed"
done
(cd "$work/download" && sha256sum pillarbox*.{deb,tar.gz,oci.tar,json} >SHA256SUMS)
refused "SHA256SUMS is not signed by this key"
download
flip "$work/download"/pillarbox-*.provenance.json
refused "provenance.json is not signed by this key"
download
key="$work/other.pub" refused "SHA256SUMS is not signed by this key"
rm "$work/download/SHA256SUMS.minisig"
refused "SHA256SUMS is not signed by this key"

echo "== what does not belong together is refused, although it is signed"
download
cp "$work/download"/pillarbox_*.deb "$work/download/pillarbox_9.9.9-1_amd64.deb"
refused "not a file of this release: pillarbox_9.9.9-1_amd64.deb"
download
version="something else" sign "$work/download/SHA256SUMS"
refused "the signature is for something else"
download
(cd "$work/download" && statement="$(echo pillarbox-*.provenance.json)" \
    && sed -i '0,/"sha256": "./s//"sha256": "x/' "$statement" \
    && sha256sum pillarbox*.{deb,tar.gz,oci.tar,json} >SHA256SUMS)
sign "$work/download"/{SHA256SUMS,pillarbox-*.provenance.json}
refused "lists other files than SHA256SUMS"
download
rm "$work/download"/pillarbox*.{deb,tar.gz,oci.tar,cdx.json}
refused "there is no file of the release here"

echo "== one file is enough"
download
rm "$work/download"/pillarbox*.{tar.gz,oci.tar,cdx.json}
packaging/verify.sh "$PUBLIC_KEY" "$work/download"

echo "== publishing"
packaging/publish_test.py "$RELEASE"
