#!/usr/bin/env bash
# Makes a release of the last commit, into target/packaging/release: the files of packaging/build.sh
# for both architectures, and
#
#   pillarbox-VERSION.provenance.json  what they were made of, and how (in-toto, SLSA)
#   SHA256SUMS                         the hashes of all files
#   *.minisig                          the signatures of these two
#
# It builds twice, in clones at different paths, and ends if any byte differs. It tries the package,
# the archives and the images, signs, and finally checks everything like a user who has downloaded it.
#
# Usage: packaging/release.sh [--built] SECRET_KEY
#
# --built takes what packaging/build.sh has left in target/packaging instead, to try the signing with a
# temporary key. SECRET_KEY is minisign's. PUBLIC_KEY names the file of its public key, by default
# packaging/release.pub. REPOSITORY is the https
# address of the sources, by default that of git's remote `origin`. Needs minisign, and without --built
# root on Debian with lintian, systemd, umoci, curl and qemu-user-static.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source packaging/tools.sh

built=no
if [[ ${1:-} = --built ]]; then built=yes; shift; fi
[[ $# = 1 ]] || { echo "usage: packaging/release.sh [--built] SECRET_KEY" >&2; exit 2; }
readonly KEY="$1"
readonly PUBLIC_KEY="${PUBLIC_KEY:-packaging/release.pub}"
readonly OUT="$PWD/target/packaging/release"
VERSION="$(cargo pkgid)"
readonly VERSION="${VERSION##*[#@]}"

fail() { echo "release.sh: $*" >&2; exit 1; }

machine() { if [[ $1 = amd64 ]]; then echo x86_64; else echo aarch64; fi; }

# Builds in a clone, so that nothing but the commit gets into it.
build() {
    git clone --quiet . "$1"
    (cd "$1" && packaging/build.sh amd64 && packaging/build.sh arm64)
}

artefacts() { find "$1" -maxdepth 1 -type f -name "pillarbox[-_]$VERSION-*" -printf '%f\n' | sort; }

# Tries what a clone has built as those who install it do.
try_out() {
    local arch package_test=0
    install_python cyclonedx-python-lib "$CYCLONEDX_VERSION" python "cyclonedx-python-lib[json-validation]"
    pushd "$1" >/dev/null
    for arch in amd64 arm64; do
        packaging/static_test.sh "$arch"
        "$TOOLS/cyclonedx-python-lib-$CYCLONEDX_VERSION/bin/python" packaging/sbom_test.py \
            target/packaging/pillarbox-*-"$arch.cdx.json" \
            "target/$(machine "$arch")-unknown-linux-musl/dist/pillarbox"
    done
    packaging/test.sh target/packaging/pillarbox_*_"$(dpkg --print-architecture).deb" || package_test=$?
    popd >/dev/null
    case $package_test in
        0) ;;
        77) echo "NOT CHECKED: the package's installation, which this machine does not allow" ;;
        *) exit "$package_test" ;;
    esac
}

# A package and an archive have the same binary, and it is of this version.
check_binary() {
    local arch="$1" binary="$work/binary-$1" run=()
    tar --extract --gzip --to-stdout --file "pillarbox-$VERSION-$arch.tar.gz" \
        "pillarbox-$VERSION-$arch/pillarbox" >"$binary"
    dpkg-deb --fsys-tarfile "pillarbox_$VERSION-1_$arch.deb" \
        | tar --extract --to-stdout ./usr/bin/pillarbox | cmp - "$binary" \
        || fail "package and archive for $arch have different binaries"
    chmod +x "$binary"
    [[ $(machine "$arch") = "$(uname -m)" ]] || run=("qemu-$(machine "$arch")-static")
    [[ $("${run[@]}" "$binary" --version) = "pillarbox $VERSION"* ]] \
        || fail "the binary for $arch is of another version"
}

require minisign
[[ $built = no || $PUBLIC_KEY != packaging/release.pub ]] || fail "--built is not for the key of releases"
[[ -f $PUBLIC_KEY ]] || fail "there is no $PUBLIC_KEY: see \"Make a release\" in CONTRIBUTING.md"
REPOSITORY="${REPOSITORY:-$(git remote get-url origin 2>/dev/null || true)}"
readonly REPOSITORY="${REPOSITORY%.git}"
# An address can hold a password, and everybody reads the provenance.
[[ $REPOSITORY = https://* && $REPOSITORY != *@* ]] \
    || fail "set REPOSITORY to the https address of the sources, without a password"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
install_build_tools

if [[ $built = yes ]]; then
    from="$PWD/target/packaging"
else
    [[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed"
    grep -q "^## $VERSION\$" CHANGELOG.md || fail "CHANGELOG.md has no section \"$VERSION\""
    rustup target add x86_64-unknown-linux-musl aarch64-unknown-linux-musl
    from="$work/first/target/packaging"
    build "$work/first"
    build "$work/second/in-another-place"
    for name in $(artefacts "$from"); do
        cmp "$from/$name" "$work/second/in-another-place/target/packaging/$name" \
            || fail "a second build gives another $name"
    done
    rm -rf "$work/second"
    try_out "$work/first"
fi

rm -rf "$OUT"
mkdir -p "$OUT"
for name in $(artefacts "$from"); do cp "$from/$name" "$OUT/"; done
provenance="pillarbox-$VERSION.provenance.json"
packaging/provenance.py "$REPOSITORY" "$VERSION" "$OUT"/pillarbox* >"$work/provenance"
mv "$work/provenance" "$OUT/$provenance"
(cd "$OUT" && LC_ALL=C sha256sum pillarbox* >"$work/sums" && mv "$work/sums" SHA256SUMS)
minisign -S -s "$KEY" -t "pillarbox $VERSION" -m "$OUT/SHA256SUMS" "$OUT/$provenance"

# As whoever downloads it would, with nothing but the public key.
cp -r "$OUT" "$work/download"
packaging/verify.sh "$PUBLIC_KEY" "$work/download"
cd "$work/download"
for archive in pillarbox-"$VERSION"-*.tar.gz; do
    arch="${archive%.tar.gz}"
    check_binary "${arch##*-}"
done
echo "The release $VERSION is in $OUT."
