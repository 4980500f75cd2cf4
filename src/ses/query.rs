//! AWS's query protocol: requests as forms, answers and errors as XML.
//!
//! Knows the protocol (AWS Query protocol, "Serialization" and "Operation error serialization"),
//! no operation in particular, and nothing of how a request travels.

use bytes::Bytes;
use form_urlencoded::Serializer;
use roxmltree::{Document, Node};

/// The content type of forms.
pub(super) const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A service that speaks the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    /// Its name in the signature and in its endpoint's host, such as `sns`.
    pub(super) name: &'static str,
    /// The version of its API.
    pub(super) version: &'static str,
}

/// Writes the form that calls `action` of a service.
pub(super) fn form(service: Service, action: &str, parameters: &[(&str, &str)]) -> Bytes {
    let mut form = Serializer::new(String::new());
    form.append_pair("Action", action).append_pair("Version", service.version);
    Bytes::from(form.extend_pairs(parameters).finish())
}

/// Reads an answer. `read` takes what it needs from the root, and gives `None` if it is not there.
///
/// The error says what is wrong, without repeating what was read.
pub(super) fn answer<T>(
    body: &[u8],
    read: impl FnOnce(Node<'_, '_>) -> Option<T>,
) -> Result<T, &'static str> {
    let text = str::from_utf8(body).map_err(|_| "not UTF-8")?;
    let document = Document::parse(text).map_err(|_| "not XML")?;
    read(document.root_element()).ok_or("an element is missing")
}

/// The text of the first element of this name below `node`, in any namespace.
pub(super) fn text(node: Node<'_, '_>, name: &str) -> Option<String> {
    elements(node, name).next().map(|found| found.text().unwrap_or_default().trim().to_owned())
}

/// All elements of this name below `node`, in any namespace.
pub(super) fn elements<'a, 'input>(
    node: Node<'a, 'input>,
    name: &str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.descendants().filter(move |found| found.is_element() && found.tag_name().name() == name)
}

/// An error's code and message: `ErrorResponse` of STS, SNS and others, `Response` of a few.
pub(super) fn error(body: &str) -> Option<(String, Option<String>)> {
    let document = Document::parse(body).ok()?;
    let root = document.root_element();
    if !matches!(root.tag_name().name(), "ErrorResponse" | "Response") {
        return None;
    }
    let error = elements(root, "Error").next()?;
    Some((text(error, "Code")?, text(error, "Message")))
}
