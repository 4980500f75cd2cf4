#!/usr/bin/env bash
# Makes a package of the version before, to be upgraded from: a binary with the units, the configuration
# and the maintainer scripts of that version.
#
# Usage: tests/systemd/previous.sh PACKAGE.deb [BINARY]
#
# Builds that version's binary in target/ci/previous unless one is given. Exits with 77 if this clone does
# not have its commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The last commit of version 0.1.0.
readonly COMMIT=c1a8957260f637fc280e9ae790a895d37f01f165
readonly PACKAGE="$1"
readonly SOURCES="$PWD/target/ci/previous/$COMMIT"
if ! git cat-file -e "$COMMIT^{commit}" 2>/dev/null; then
    echo "This clone does not have the version before: $COMMIT" >&2
    exit 77
fi

if [[ ! -d $SOURCES ]]; then
    rm -rf "$SOURCES.part"
    mkdir -p "$SOURCES.part"
    git archive "$COMMIT" | tar -x -C "$SOURCES.part"
    mv "$SOURCES.part" "$SOURCES"
fi
binary="${2:-}"
if [[ -z $binary ]]; then
    # In a directory of its own, so that it never takes the place of this version's program.
    (cd "$SOURCES" && CARGO_TARGET_DIR="$OLDPWD/target/ci/previous/target" \
        cargo build --locked --bin pillarbox)
    binary=target/ci/previous/target/debug/pillarbox
fi

tests/systemd/package.sh "$SOURCES" "$binary" 0.1.0~previous "$PACKAGE"
