#!/usr/bin/env python3
"""Writes what the release binary is made of, as a CycloneDX document (version 1.5, JSON).

Usage: packaging/sbom.py TARGET >FILE

Which crates are linked into the binary is what `cargo tree` says of the target; their licences and
the hashes of their sources are those of `cargo metadata` and Cargo.lock. The same sources give the
same bytes: there is no serial number, and the time is SOURCE_DATE_EPOCH.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib

ROOT = "pillarbox"
CARGO = os.environ.get("CARGO", "cargo")


def cargo(*arguments):
    return subprocess.run(
        [CARGO, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def linked(target):
    """Name and version of every crate in the binary, the root among them."""
    lines = cargo(
        "tree", "--locked", "--package", ROOT, "--target", target,
        # Macros are programs of the compiler's.
        "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}",
    ).splitlines()
    crates = set()
    for line in filter(None, lines):
        name, version = line.split()[:2]
        crates.add((name, version.removeprefix("v")))
    return crates


def purl(crate):
    return "pkg:cargo/{}@{}".format(*crate)


def component(crate, package, checksum):
    described = {
        "type": "application" if crate[0] == ROOT else "library",
        "bom-ref": purl(crate),
        "name": crate[0],
        "version": crate[1],
        "purl": purl(crate),
    }
    if package["description"]:
        described["description"] = package["description"].strip()
    if package["license"]:
        # A slash is how SPDX's OR was written once.
        expression = re.sub(r"\s*/\s*|\s+OR\s+", " OR ", package["license"])
        described["licenses"] = [{"expression": expression}]
    if checksum:
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        described["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return described


def document(target):
    metadata = json.loads(
        cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target)
    )
    with open(os.path.join(metadata["workspace_root"], "Cargo.lock"), "rb") as file:
        lock = tomllib.load(file)["package"]
    checksums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in lock}
    packages = {package["id"]: package for package in metadata["packages"]}
    crate_of = {id: (package["name"], package["version"]) for id, package in packages.items()}
    package_of = {crate_of[id]: package for id, package in packages.items()}
    crates = linked(target)
    dependencies = []
    for node in metadata["resolve"]["nodes"]:
        crate = crate_of[node["id"]]
        if crate not in crates:
            continue
        needed = {
            crate_of[dependency["pkg"]]
            for dependency in node["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        }
        dependencies.append(
            {"ref": purl(crate), "dependsOn": sorted(map(purl, needed & crates))}
        )
    components = {
        crate: component(crate, package_of[crate], checksums[crate]) for crate in crates
    }
    root = next(crate for crate in crates if crate[0] == ROOT)
    described = components.pop(root)
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": described,
            "properties": [{"name": "cdx:rustc:sbom:target:triple", "value": target}],
        },
        "components": [components[crate] for crate in sorted(components)],
        "dependencies": sorted(dependencies, key=lambda dependency: dependency["ref"]),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    json.dump(document(sys.argv[1]), sys.stdout, indent=2, ensure_ascii=False)
    print()
