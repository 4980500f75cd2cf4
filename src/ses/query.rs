//! AWS's query protocol: calls as forms, answers and errors as XML.
//!
//! Knows the protocol (AWS Query protocol, "Serialization" and "Operation error serialization")
//! and no operation in particular. These calls do not count towards SES's limits, so they wait for
//! no turn.

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::Method;
use reqwest::Url;
use roxmltree::{Document, Node};

use crate::ses::SesClient;
use crate::ses::call::{CallError, accepted};
use crate::ses::transport::{Call, Terms};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A service that speaks the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    /// Its name in the signature and in its endpoint's host, such as `sns`.
    pub(super) name: &'static str,
    /// The version of its API.
    pub(super) version: &'static str,
}

impl SesClient {
    /// Calls `action` of a service in `region`, the client's own if none is named. `read` takes
    /// what it needs from the answer's root, and gives `None` where it is not there.
    pub(super) async fn query<T>(
        &self,
        service: Service,
        region: Option<&str>,
        action: &str,
        parameters: &[(&str, &str)],
        read: impl FnOnce(Node<'_, '_>) -> Option<T>,
    ) -> Result<T, CallError> {
        let transport = &self.inner.transport;
        let own = transport.terms();
        let region = region.unwrap_or(own.region);
        let base = self.inner.endpoints.of(service.name, region);
        // A region comes from an ARN at times, and so from outside.
        let url = Url::parse(&format!("{base}/"))
            .map_err(|_| CallError::Unreachable(format!("no endpoint in region {region:?}")))?;
        let form = Serializer::new(String::new())
            .append_pair("Action", action)
            .append_pair("Version", service.version)
            .extend_pairs(parameters)
            .finish();
        let call = Call {
            service: service.name,
            method: Method::POST,
            url: &url,
            headers: &[FORM],
            body: Bytes::from(form),
        };
        let reply = transport.call_on(Terms { region, ..own }, &call).await?;
        accepted(&reply)?;
        let unreadable = |what: &str| CallError::Unreadable(format!("{action}: {what}"));
        let body = reply.body.map_err(CallError::Unreadable)?;
        let text = str::from_utf8(&body).map_err(|_| unreadable("not UTF-8"))?;
        let document = Document::parse(text).map_err(|_| unreadable("not XML"))?;
        read(document.root_element()).ok_or_else(|| unreadable("an element is missing"))
    }
}

/// The text of the first element of this name below `node`, whatever its namespace.
pub(super) fn text(node: Node<'_, '_>, name: &str) -> Option<String> {
    elements(node, name).next().map(|found| found.text().unwrap_or_default().trim().to_owned())
}

/// All elements of this name below `node`, whatever their namespace.
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

#[cfg(test)]
mod tests;
