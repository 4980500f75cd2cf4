#!/usr/bin/env python3
"""Checks the container examples against the schemas of the Compose Specification and of Kubernetes'
API, and against what pillarbox itself says: its version, its user and its variables.

Usage: packaging/examples_test.py WHEEL. Needs kubernetes-validate, which has the schemas of
Kubernetes; WHEEL is docker-compose 1.29, which has the schema of the Compose Specification.
"""

import copy
import json
import pathlib
import re
import sys
import tomllib
import zipfile

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
KUBERNETES_VERSION = "1.31"
# The user of packaging/image.py.
USER = 65532


def check(holds, what):
    if not holds:
        sys.exit(f"examples_test.py: {what}")


def check_refused(validate, error, document, container):
    """A schema that takes an unknown field checks nothing."""
    broken = copy.deepcopy(document)
    container(broken)["imagine"] = "x"
    try:
        validate(broken)
    except error:
        return
    sys.exit("examples_test.py: the schema takes unknown fields")


def compose_services(wheel, name):
    """The services of an example that run pillarbox."""
    schema = json.loads(zipfile.ZipFile(wheel).read("compose/config/compose_spec.json"))
    document = yaml.safe_load((ROOT / "examples" / name).read_text())

    def validate(document):
        jsonschema.validate(document, schema)

    def services(document):
        all_services = document["services"].values()
        return [one for one in all_services if one["image"].startswith("pillarbox:")]

    validate(document)
    check(services(document), f"{name} has no pillarbox")
    check_refused(validate, jsonschema.ValidationError, document, lambda one: services(one)[0])
    return services(document)


def kubernetes_pod():
    documents = list(yaml.safe_load_all((ROOT / "examples/kubernetes.yaml").read_text()))

    def validate(document):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)

    def container(document):
        return document["spec"]["template"]["spec"]["containers"][0]

    for document in documents:
        validate(document)
    check([one["kind"] for one in documents] == ["Service", "StatefulSet"], "there are other kinds")
    stateful_set = documents[1]
    check_refused(validate, kubernetes_validate.ValidationError, stateful_set, container)
    check(stateful_set["spec"]["replicas"] == 1, "one process holds the data file")
    return stateful_set["spec"]["template"]["spec"], container(stateful_set)


def main(wheel):
    services = compose_services(wheel, "compose.yaml")
    nodes = compose_services(wheel, "compose-nodes.yaml")
    names = [node["environment"]["PILLARBOX_CLUSTER__NODE"] for node in nodes]
    check(len(names) == 2 and len(set(names)) == 2, f"two nodes have these names: {names}")
    services += nodes
    pod, container = kubernetes_pod()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    for image in (*(service["image"] for service in services), container["image"]):
        check(image == f"pillarbox:{version}", f"{image} is not the image of version {version}")
    check(pod["securityContext"]["runAsUser"] == USER, "the pod has another user than the image")
    reference = (ROOT / "docs/configuration.md").read_text()
    names = [name for service in services for name in service["environment"]]
    names += [variable["name"] for variable in container["env"]]
    names += re.findall(r"\bPILLARBOX_\w+", (ROOT / "docs/compose.md").read_text())
    for name in names:
        known = name.startswith("AWS_") or f"Variable: `{name}`" in reference
        check(known, f"there is no variable {name}")
    print("compose.yaml, compose-nodes.yaml and kubernetes.yaml are valid.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
