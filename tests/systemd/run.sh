#!/usr/bin/env bash
# Tries a Debian package under the real systemd: boots this machine's own in a container on a copy of
# this machine's files, which is thrown away, and has clients send mail while scenarios.py kills,
# restarts, upgrades and stops the service.
#
# Usage: tests/systemd/run.sh PACKAGE.deb PREVIOUS.deb JUDGE [SCENARIO…]
#
# PREVIOUS is a package of an earlier version (previous.sh makes one), JUDGE the program of
# tests/judge. SYSTEMD_ROUNDS is the number of lives in the longest scenario, SEED repeats its
# choices, and the histories are in target/tmp/systemd. Needs root, systemd-nspawn, Python 3.11, and
# overlay file systems. Exits with 77 if this machine cannot boot systemd in a container.
set -euo pipefail

readonly HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly HISTORIES="$HERE/../../target/tmp/systemd"
source "$HERE/../../packaging/kit.sh"
isolate "$@"

readonly PACKAGE="$(realpath "$1")" PREVIOUS="$(realpath "$2")" JUDGE="$(realpath "$3")"
shift 3
mkdir -p "$HISTORIES"

work="$(mktemp -d)"
mount -t tmpfs tmpfs "$work"
trap 'umount --recursive --lazy "$work"; rmdir "$work"' EXIT
mkdir "$work"/{upper,work,root,packages}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || exit 77
# What the container's start writes there stays in this mount namespace.
mount -t tmpfs tmpfs /run

PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 python3 "$HERE/scenarios.py" \
    "$work" "$PACKAGE" "$PREVIOUS" "$JUDGE" "$(realpath "$HISTORIES")" "$@"
