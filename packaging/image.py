#!/usr/bin/env python3
"""Writes the container image of a static binary, without a daemon.

Usage: SOURCE_DATE_EPOCH=SECONDS packaging/image.py BINARY ARCH VERSION FILE

The image is made from nothing: it has the binary, root certificates, a configuration and the
directories that the service needs, and neither a shell nor a package. FILE is a tar archive of an
OCI layout (OCI Image Format Specification 1.1). It also has `manifest.json`, which `docker load`
reads. The same input gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Debian's package ca-certificates keeps the roots here, and the binary looks for them here.
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
# A number, because Kubernetes cannot tell whether a name is root's. No other user has this one.
USER = 65532
DATA = "/var/lib/pillarbox"
ENVIRONMENT = {
    "PATH": "/usr/bin",
    # The loopback address of a container is reached only from inside.
    "PILLARBOX_LISTEN": "0.0.0.0:8025",
    "PILLARBOX_OPERATOR_LISTEN": "0.0.0.0:8026",
    # In the volume, so that all else may be read-only.
    "PILLARBOX_ADMIN_SOCKET": f"{DATA}/admin.sock",
}
OCI = "application/vnd.oci.image"
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def directory(name, mode=0o755, owner=0):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid, entry.mtime = tarfile.DIRTYPE, mode, owner, owner, EPOCH
    return entry, b""


def file(name, content, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, EPOCH
    return entry, content


def archive(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def root_file_system(binary):
    return archive([
        directory("etc"),
        directory("etc/pillarbox"),
        file("etc/pillarbox/pillarbox.toml", (ROOT / "src/config/example.toml").read_bytes()),
        directory("etc/ssl"),
        directory("etc/ssl/certs"),
        file("etc/ssl/certs/ca-certificates.crt", CERTIFICATES.read_bytes()),
        directory("tmp", 0o1777),
        directory("usr"),
        directory("usr/bin"),
        file("usr/bin/pillarbox", pathlib.Path(binary).read_bytes(), 0o755),
        directory("var"),
        directory("var/lib"),
        directory(DATA.removeprefix("/"), 0o700, USER),
    ])


def document(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type, content):
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def path(content):
    return f"blobs/{digest(content).replace(':', '/')}"


def main(binary, architecture, version, target):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    files = root_file_system(binary)
    layer = gzip.compress(files, mtime=0)
    config = document({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {"8025/tcp": {}, "8026/tcp": {}},
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "Entrypoint": ["/usr/bin/pillarbox"],
            "Cmd": ["serve", "--config", "/etc/pillarbox/pillarbox.toml"],
            "Volumes": {DATA: {}},
            "WorkingDir": DATA,
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "pillarbox",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(files)]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    })
    manifest = document({
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": descriptor(f"{OCI}.config.v1+json", config),
        "layers": [descriptor(f"{OCI}.layer.v1.tar+gzip", layer)],
    })
    named = {
        **descriptor(f"{OCI}.manifest.v1+json", manifest),
        "annotations": {
            "org.opencontainers.image.ref.name": version,
            "io.containerd.image.name": f"docker.io/library/pillarbox:{version}",
        },
    }
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [named]}
    for_docker = {"Config": path(config), "Layers": [path(layer)], "RepoTags": [f"pillarbox:{version}"]}
    pathlib.Path(target).write_bytes(archive([
        file("oci-layout", document({"imageLayoutVersion": "1.0.0"})),
        file("index.json", document(index)),
        file("manifest.json", document([for_docker])),
        directory("blobs"),
        directory("blobs/sha256"),
        *(file(path(blob), blob) for blob in (config, manifest, layer)),
    ]))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
