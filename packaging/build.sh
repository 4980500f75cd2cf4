#!/usr/bin/env bash
# Builds everything that can be installed, into target/packaging:
#
#   pillarbox_VERSION-1_ARCH.deb     Debian package
#   pillarbox-VERSION-ARCH.tar.gz    the binary with units, manual pages and documentation
#   pillarbox-VERSION-ARCH.oci.tar   container image
#   pillarbox-VERSION-ARCH.cdx.json  list of what the binary is made of
#
# All of them have the same binary. It is static and runs on any Linux. The same sources give the
# same bytes in any directory; for the image, the root certificates must be the same, too.
#
# Usage: packaging/build.sh [amd64|arm64], by default for this machine's own architecture.
#
# Needs Python 3.11, cargo-auditable, cargo-deb and cargo-zigbuild with zig (packaging/tools.sh), the
# target's standard library (rustup target add x86_64-unknown-linux-musl or
# aarch64-unknown-linux-musl), root certificates (Debian's ca-certificates) and, for the other
# architecture, qemu-user-static. PROFILE names a build profile other than `dist`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly OUT="$PWD/target/packaging"
readonly PROFILE="${PROFILE:-dist}"
readonly ARCH="${1:-$(dpkg --print-architecture)}"
case "$ARCH" in
    amd64) readonly MACHINE=x86_64 ;;
    arm64) readonly MACHINE=aarch64 ;;
    *) echo "usage: packaging/build.sh [amd64|arm64]" >&2; exit 2 ;;
esac
readonly TARGET="$MACHINE-unknown-linux-musl"
VERSION="$(cargo pkgid)"
readonly VERSION="${VERSION##*[#@]}"
readonly NAME="pillarbox-$VERSION-$ARCH"

# All times are those of the last change, not of the build.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
# No path of this machine in the binary.
readonly CARGO="${CARGO_HOME:-$HOME/.cargo}"
RUSTFLAGS="--remap-path-prefix=$PWD=/pillarbox --remap-path-prefix=$CARGO=/cargo"
# Without this option, zig links a static binary to a fixed address. With a different address in each
# process, a memory error is harder to exploit.
export RUSTFLAGS="$RUSTFLAGS -C link-arg=-pie"
export CARGO_TARGET_DIR="$PWD/target"
umask 022

# The binary contains the list of its crates, for tools that look for known vulnerabilities.
cargo auditable zigbuild --profile "$PROFILE" --locked --target "$TARGET"
readonly BINARY="$CARGO_TARGET_DIR/$TARGET/$PROFILE/pillarbox"
run=()
[[ $MACHINE = "$(uname -m)" ]] || run=("qemu-$MACHINE-static")

# From the command line's own definition, so that neither can be out of date.
rm -rf "$OUT/man" "$OUT/completions"
mkdir -p "$OUT/man" "$OUT/completions"
"${run[@]}" "$BINARY" man --dir "$OUT/man"
"${run[@]}" "$BINARY" completions bash >"$OUT/completions/pillarbox.bash"
"${run[@]}" "$BINARY" completions zsh >"$OUT/completions/_pillarbox"
"${run[@]}" "$BINARY" completions fish >"$OUT/completions/pillarbox.fish"

# Cargo has stripped the binary already.
cargo deb --no-build --no-strip --profile "$PROFILE" --locked --target "$TARGET" --output "$OUT/"

rm -rf "${OUT:?}/$NAME"
mkdir "$OUT/$NAME"
cp -r README.md SECURITY.md LICENSE docs examples monitoring systemd \
    "$OUT/man" "$OUT/completions" "$OUT/$NAME/"
install -m 755 "$BINARY" "$OUT/$NAME/pillarbox"
install -m 644 src/config/example.toml "$OUT/$NAME/pillarbox.toml"
tar --create --directory "$OUT" --sort name --mtime "@$SOURCE_DATE_EPOCH" --owner 0 --group 0 \
    --numeric-owner --mode u=rwX,go=rX "$NAME" | gzip --no-name >"$OUT/$NAME.tar.gz"
rm -rf "${OUT:?}/$NAME"

packaging/image.py "$BINARY" "$ARCH" "$VERSION" "$OUT/$NAME.oci.tar"

packaging/sbom.py "$TARGET" >"$OUT/$NAME.cdx.json"
