#!/usr/bin/env python3
"""Holds a provenance statement against in-toto's and SLSA's own definitions, and against the sources.

Usage: packaging/provenance_test.py FILE. Needs in-toto-attestation.
"""

import json
import subprocess
import sys

from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

with open(sys.argv[1], encoding="utf-8") as opened:
    document = json.load(opened)
# A field that the definitions do not have is an error.
parsed = json_format.ParseDict(document, statement_pb2.Statement())
Statement.copy_from_pb(parsed).validate()
provenance = json_format.ParseDict(document["predicate"], provenance_pb2.Provenance())
if document["predicateType"] != "https://slsa.dev/provenance/v1":
    sys.exit(f"{sys.argv[1]} has another predicate")
definition = provenance.build_definition
if not (definition.build_type and definition.external_parameters and provenance.run_details.builder.id):
    sys.exit(f"{sys.argv[1]} lacks what SLSA requires")
commit = subprocess.run(
    ["git", "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True
).stdout.strip()
if definition.resolved_dependencies[0].digest["gitCommit"] != commit:
    sys.exit(f"{sys.argv[1]} names other sources")
lacking = [one.uri for one in definition.resolved_dependencies if not (one.digest or "@" in one.uri)]
if lacking:
    sys.exit(f"{sys.argv[1]} names {lacking} without a version")
print(f"{len(parsed.subject)} files, made of {len(definition.resolved_dependencies)} named things.")
