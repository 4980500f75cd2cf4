"""Reads what the provider got as botocore's model of SES v2 has it: each request passes botocore's
validation, is the request that botocore itself would write, and has the files that were posted."""

import base64
import copy
import hashlib
import json
import sys

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import validate_parameters

expected_file, got_file = sys.argv[1:]
expected = json.load(open(expected_file, encoding="utf-8"))
model = botocore.session.get_session().get_service_model("sesv2")
operation = model.operation_model("SendEmail")
serializer = create_serializer(model.metadata["protocol"])



def check_enums(shape, value):
    """The model's words, which botocore leaves to the service."""
    if shape.type_name == "structure":
        for name, member in value.items():
            check_enums(shape.members[name], member)
    elif shape.type_name == "list":
        for member in value:
            check_enums(shape.member, member)
    elif "enum" in shape.metadata:
        assert value in shape.metadata["enum"], (shape.name, value)


count = 0
raw = 0
subjects = set()
for line in open(got_file, "rb"):
    request = json.loads(line)
    assert request["ConfigurationOverrides"]["Tracking"] == {
        "OpenTrackingEnabled": "DISABLED",
        "ClickTrackingEnabled": "DISABLED",
    }, request
    if "Raw" in request["Content"]:
        parameters = copy.deepcopy(request)
        content = parameters["Content"]["Raw"]
        content["Data"] = base64.b64decode(content["Data"], validate=True)
        validate_parameters(parameters, operation.input_shape)
        check_enums(operation.input_shape, parameters)
        written = serializer.serialize_to_request(parameters, operation)
        assert json.loads(written["body"]) == request
        raw += 1
        continue
    subject = request["Content"]["Simple"]["Subject"]["Data"]
    subjects.add(subject)
    want = expected[subject]
    parameters = copy.deepcopy(request)
    files = parameters["Content"]["Simple"].get("Attachments", [])
    for file in files:
        file["RawContent"] = base64.b64decode(file["RawContent"], validate=True)
    # The model's lengths of strings, which botocore leaves to the service.
    shape = operation.input_shape.members["Content"].members["Simple"].members["Attachments"].member
    for file in files:
        for name, value in file.items():
            metadata = shape.members[name].metadata
            if isinstance(value, str) and "max" in metadata:
                assert metadata.get("min", 0) <= len(value) <= metadata["max"], (name, value)
            if "enum" in metadata:
                assert value in metadata["enum"], (name, value)
    validate_parameters(parameters, operation.input_shape)
    check_enums(operation.input_shape, parameters)
    written = serializer.serialize_to_request(parameters, operation)
    assert json.loads(written["body"]) == request, subject
    got = [
        [f["FileName"], f["ContentType"], f["ContentDisposition"], f.get("ContentId"),
         f["ContentTransferEncoding"], hashlib.sha256(f["RawContent"]).hexdigest()]
        for f in files
    ]
    assert got == want, (got[:3], want[:3])
    count += len(got)
assert subjects == set(expected), "some messages never came"
print(f"{len(subjects)} messages, {count} files, {raw} raw")
