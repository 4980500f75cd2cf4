//! Compares the `OpenAPI` document with the code.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use pillarbox_domain::limits::{
    MAX_ATTACHMENTS, MAX_BATCH, MAX_HEADERS, MAX_IDEMPOTENCY_KEY_CHARS, MAX_METADATA,
    MAX_METADATA_NAME_CHARS, MAX_METADATA_VALUE_CHARS, MAX_RECIPIENTS, MAX_SUBJECT_CHARS,
};

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn schema(name: &str) -> Value {
    document()["components"]["schemas"][name].clone()
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap().keys().cloned().collect()
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_document_has_the_names_of_the_code() {
    assert_eq!(keys(&schema("Email")["properties"]), set(requests::FIELDS));
    assert_eq!(keys(&schema("Attachment")["properties"]), set(requests::ATTACHMENT_MEMBERS));
    let parameters = document()["paths"]["/emails"]["get"]["parameters"].clone();
    let parameters = parameters.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
    assert_eq!(set(parameters), set(requests::PARAMETERS));
    let mut names = BTreeSet::new();
    for error in ApiError::one_of_each() {
        for key in [KeyGiven::Yes, KeyGiven::No] {
            let body: Value = serde_json::from_slice(&error::written(&error, key).body).unwrap();
            names.insert(body["name"].as_str().unwrap().to_owned());
        }
    }
    names.extend(error::FIELD_NAMES.map(str::to_owned));
    names.extend(
        ["daily_quota_exceeded", "monthly_quota_exceeded", "rate_limit_exceeded"]
            .map(str::to_owned),
    );
    let described = schema("Error")["properties"]["name"]["enum"].clone();
    let described = described.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    assert_eq!(set(described), names);
}

#[test]
fn the_document_has_the_paths_and_methods_of_the_code() {
    let paths = document()["paths"].clone();
    for (path, item) in paths.as_object().unwrap() {
        let one = path.replace("{id}", "1");
        let endpoint = Endpoint::of(&one).unwrap();
        let methods = endpoint.allow().to_ascii_lowercase();
        assert_eq!(keys(item), set(methods.split(", ")), "{path}");
        assert!(PATHS.contains(path.as_str()), "{path}");
    }
    assert_eq!(paths.as_object().unwrap().len(), 4);
}

#[test]
fn the_document_has_the_numbers_of_the_policy() {
    let fields = &schema("Email")["properties"];
    for field in ["to", "cc", "bcc"] {
        assert_eq!(fields[field]["anyOf"][1]["maxItems"], MAX_RECIPIENTS, "{field}");
    }
    assert_eq!(fields["subject"]["maxLength"], MAX_SUBJECT_CHARS);
    assert_eq!(fields["headers"]["maxProperties"], MAX_HEADERS);
    assert_eq!(fields["attachments"]["maxItems"], MAX_ATTACHMENTS);
    assert_eq!(fields["tags"]["anyOf"][0]["maxItems"], MAX_METADATA);
    let tag = &schema("Tag")["properties"];
    assert_eq!(tag["name"]["pattern"], format!("^[A-Za-z0-9_-]{{1,{MAX_METADATA_NAME_CHARS}}}$"));
    assert_eq!(tag["value"]["maxLength"], MAX_METADATA_VALUE_CHARS);
    let batch = &document()["paths"]["/emails/batch"]["post"];
    let body = &batch["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(body["maxItems"], MAX_BATCH);
    assert_eq!(batch["parameters"][0]["schema"]["maxLength"], MAX_IDEMPOTENCY_KEY_CHARS);
    let list = &document()["paths"]["/emails"]["get"]["parameters"][0]["schema"];
    assert_eq!(list["default"], DEFAULT_LIMIT);
}

#[test]
fn paths_are_told_apart() {
    let of = |path| Endpoint::of(path).ok();
    assert_eq!(of("/emails"), Some(Endpoint::Emails));
    assert_eq!(of("/emails/batch"), Some(Endpoint::Batch));
    assert_eq!(of("/emails/x"), Some(Endpoint::Email("x")));
    assert_eq!(of("/emails/x/cancel"), Some(Endpoint::Cancel("x")));
    for unknown in
        ["/", "/emails/", "/emails//cancel", "/emails/x/cancel/", "/emailsx", "/emails/x/y"]
    {
        assert_eq!(of(unknown), None, "{unknown}");
    }
}
