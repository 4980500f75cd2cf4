#!/usr/bin/env bash
# Tries a Debian package under the real systemd: boots this machine's own in a container on a copy of
# this machine's files, which is thrown away, and has clients send mail while scenarios.py kills,
# restarts, upgrades and stops the service.
#
# Usage: tests/systemd/run.sh BINARY JUDGE [PACKAGE.deb] [SCENARIO…]
#
# BINARY is this version's program; without PACKAGE, a package is made of it. JUDGE is the program of
# tests/judge. The version before, which is upgraded from, is BINARY under the units, the configuration
# and the maintainer scripts of that version; with SYSTEMD_PREVIOUS=build it is really that version, whose
# build takes some minutes. SYSTEMD_ROUNDS is the number of lives in the longest scenario, SEED repeats
# the choices, and the histories are in target/tmp/systemd. Needs root, systemd-nspawn, Python 3.11, and
# overlay file systems. Exits with 77 if this machine cannot boot systemd in a container.
set -euo pipefail

readonly HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly TARGET="$HERE/../../target"
readonly HISTORIES="$TARGET/tmp/systemd" PREVIOUS="$TARGET/tmp/systemd/previous.deb"
source "$HERE/../../packaging/kit.sh"

# Before there are namespaces, because a build needs this machine's network.
make_packages() {
    mkdir -p "$HISTORIES"
    rm -f "$PREVIOUS"
    [[ ${3:-} = *.deb ]] || "$HERE/package.sh" "$HERE/../.." "$1" 0.1.0-1 "$HISTORIES/package.deb"
    local binary=("$(realpath "$1")") status=0
    [[ ${SYSTEMD_PREVIOUS:-} != build ]] || binary=()
    "$HERE/previous.sh" "$(realpath "$HISTORIES")/previous.deb" "${binary[@]}" || status=$?
    # Without its commit, all but the upgrade from it can be tried.
    [[ $status = 0 || $status = 77 ]] || exit "$status"
}
[[ ${ISOLATED:-} = yes ]] || make_packages "$@"
isolate "$@"

readonly JUDGE="$(realpath "$2")"
package="$HISTORIES/package.deb"
shift 2
if [[ ${1:-} = *.deb ]]; then
    package="$1"
    shift
fi
package="$(realpath "$package")"

work="$(mktemp -d)"
mount -t tmpfs tmpfs "$work"
trap 'umount --recursive --lazy "$work"; rmdir "$work"' EXIT
mkdir "$work"/{upper,work,root,packages}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || exit 77
# What the container's start writes there stays in this mount namespace.
mount -t tmpfs tmpfs /run

PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 python3 "$HERE/scenarios.py" \
    "$work" "$package" "$PREVIOUS" "$JUDGE" "$(realpath "$HISTORIES")" "$@"
