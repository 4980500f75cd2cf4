#!/usr/bin/env bash
# Builds the Debian package into target/packaging, the same bytes wherever the sources lie, and
# beside it pillarbox-TARGET.cdx.json, the list of what the binary is made of.
#
# Needs cargo-deb and Python 3.11. With TARGET=x86_64-unknown-linux-musl the binary is static: for
# that the target's standard library (rustup target add) and musl-gcc (musl-tools) are needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly OUT="$PWD/target/packaging"
readonly TARGET="${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}"

# Times in the package are those of the last change, not of the build.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
# No path of this machine in the binary.
readonly CARGO="${CARGO_HOME:-$HOME/.cargo}"
export RUSTFLAGS="--remap-path-prefix=$PWD=/pillarbox --remap-path-prefix=$CARGO=/cargo"
export CARGO_TARGET_DIR="$PWD/target"
umask 022

cargo build --profile dist --locked --target "$TARGET"
readonly BINARY="$CARGO_TARGET_DIR/$TARGET/dist/pillarbox"

# From the command line's own definition, so that neither can be out of date.
rm -rf "$OUT/man" "$OUT/completions"
mkdir -p "$OUT/man" "$OUT/completions"
"$BINARY" man --dir "$OUT/man"
"$BINARY" completions bash >"$OUT/completions/pillarbox.bash"
"$BINARY" completions zsh >"$OUT/completions/_pillarbox"
"$BINARY" completions fish >"$OUT/completions/pillarbox.fish"

# A C library that is linked in is no dependency.
depends=()
case "$TARGET" in *-musl) depends=(--variant static) ;; esac
cargo deb --no-build --profile dist --locked --target "$TARGET" --output "$OUT/" "${depends[@]}"

packaging/sbom.py "$TARGET" >"$OUT/pillarbox-$TARGET.cdx.json"
