#!/usr/bin/env bash
# Makes a package of an earlier version, to be upgraded from: the binary of a commit, with that
# commit's units, configuration and maintainer scripts.
#
# Usage: tests/systemd/previous.sh COMMIT PACKAGE.deb [BINARY]
#
# Builds the binary in target/ci/previous unless it is given. Exits with 77 if this clone does not have
# the commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly COMMIT="$1" PACKAGE="$2"
readonly SOURCES="$PWD/target/ci/previous/$COMMIT"
git cat-file -e "$COMMIT^{commit}" 2>/dev/null || exit 77

if [[ ! -d $SOURCES ]]; then
    rm -rf "$SOURCES.part"
    mkdir -p "$SOURCES.part"
    git archive "$COMMIT" | tar -x -C "$SOURCES.part"
    mv "$SOURCES.part" "$SOURCES"
fi
binary="${3:-}"
if [[ -z $binary ]]; then
    # In a directory of its own, so that it never takes the place of this version's program.
    (cd "$SOURCES" && CARGO_TARGET_DIR="$OLDPWD/target/ci/previous/target" \
        cargo build --locked --bin pillarbox)
    binary=target/ci/previous/target/debug/pillarbox
fi

tests/systemd/package.sh "$SOURCES" "$binary" 0.1.0~previous "$PACKAGE"
