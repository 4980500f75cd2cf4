#!/usr/bin/env python3
"""Updates Cargo.lock to the newest versions that have been out for 14 days.

Usage: packaging/update.py [DIRECTORY]..., by default the workspace and tests/fuzz.

A version that somebody published with a stolen account is usually found within days; until then
nothing here takes it. Only a version that is in Cargo.lock already stays, and a crate with a known
vulnerability goes to its newest version at once. Needs cargo-deny, which reads the advisories.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COOLDOWN = datetime.timedelta(days=14)


def cargo(directory, *arguments, **options):
    return subprocess.run(["cargo", *arguments], cwd=directory, text=True, **options)


def locked(directory):
    """Name and version of every crate of a registry."""
    lock = tomllib.loads((directory / "Cargo.lock").read_text(encoding="utf-8"))
    return {(one["name"], one["version"]) for one in lock["package"] if "source" in one}


def order(version):
    """A key to compare versions by; a release comes after its pre-releases."""
    core, _, before = version.partition("+")[0].partition("-")
    parts = [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in before.split(".")]
    return [int(part) for part in core.split(".")], not before, parts


def line(crate):
    """The crate with the part of its version that stays the same in a compatible update."""
    name, version = crate
    numbers, _, _ = order(version)
    significant = next((place for place, number in enumerate(numbers) if number), 2)
    return name, tuple(numbers[: significant + 1])


def resolve(directory):
    """Takes the newest versions of 14 days ago."""
    before = (datetime.datetime.now(datetime.UTC) - COOLDOWN).strftime("%Y-%m-%dT%H:%M:%SZ")
    # The option has no stable name yet. rust-toolchain.toml names the cargo that has it.
    cargo(
        directory, "generate-lockfile", "--quiet", "-Z", "unstable-options", "--publish-time", before,
        env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, check=True,
    )


def keep_newer(directory, before):
    """Takes back every step to a version older than the one before."""
    newest = {}
    for crate in sorted(before, key=lambda one: order(one[1])):
        newest[line(crate)] = crate
    while True:
        back = {
            crate: newest[line(crate)][1]
            for crate in sorted(locked(directory))
            if line(crate) in newest and order(crate[1]) < order(newest[line(crate)][1])
        }
        # Crates that need one another in one version can depend on the order.
        done = [
            cargo(
                directory, "update", "--quiet", f"{name}@{version}", "--precise", to,
                stderr=subprocess.DEVNULL,
            ).returncode == 0
            for (name, version), to in back.items()
        ]
        if not back:
            return
        if not any(done):
            sys.exit(f"update.py: keep by hand: {back}")


def vulnerable(directory):
    """The crates with a known vulnerability, each with the advisory's number."""
    checked = cargo(
        directory, "deny", "--format", "json", "--all-features", "check", "advisories",
        stderr=subprocess.PIPE,
    )
    entries = [json.loads(text)["fields"] for text in checked.stderr.splitlines() if text.startswith("{")]
    return {
        (graph["Krate"]["name"], graph["Krate"]["version"]): entry["advisory"]["id"]
        for entry in entries
        if entry.get("code") == "vulnerability"
        for graph in entry["graphs"]
    }


def fix(directory):
    if cargo(directory, "deny", "fetch", "db").returncode:
        print("NOT CHECKED: advisories; the database could not be fetched", file=sys.stderr)
        return {}
    fixed = vulnerable(directory)
    for name, version in fixed:
        cargo(directory, "update", "--quiet", f"{name}@{version}", check=True)
    if left := vulnerable(directory):
        print(f"update.py: still vulnerable: {left}", file=sys.stderr)
    return {line(crate): advisory for crate, advisory in fixed.items()}


def update(directory):
    file = directory / "Cargo.lock"
    kept = file.read_text(encoding="utf-8")
    before = locked(directory)
    try:
        resolve(directory)
        keep_newer(directory, before)
    except BaseException:
        file.write_text(kept, encoding="utf-8")
        raise
    fixed = fix(directory)
    after = locked(directory)
    for name, version in sorted(before - after):
        print(f"- {name} {version}")
    for crate in sorted(after - before):
        advisory = fixed.get(line(crate))
        reason = f", whatever its age: fixes {advisory}" if advisory else ""
        print(f"+ {crate[0]} {crate[1]}{reason}")


if __name__ == "__main__":
    if subprocess.run(["cargo", "deny", "--version"], stdout=subprocess.DEVNULL).returncode:
        sys.exit("update.py: install cargo-deny")
    for directory in sys.argv[1:] or [ROOT, ROOT / "tests/fuzz"]:
        update(pathlib.Path(directory))
