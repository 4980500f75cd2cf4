//! STS over the query protocol: `GetCallerIdentity`, and nothing else of it.
//!
//! Source: <https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html>

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response};

use super::ACCOUNT;
use super::answer::{AnswerBody, Refusal, Reply};

const ACTION: &[u8] = b"Action=GetCallerIdentity&Version=2011-06-15";

/// Whether this is a call of STS.
pub(super) fn is_call(parts: &Parts) -> bool {
    let form = HeaderValue::from_static("application/x-www-form-urlencoded");
    parts.uri.path() == "/" && parts.headers.get(CONTENT_TYPE) == Some(&form)
}

/// Carries out a call whose signature has been checked.
pub(super) fn answer(body: &[u8]) -> Result<Reply, Refusal> {
    if body != ACTION {
        return Err(Refusal::bad_request("The simulator's STS has only GetCallerIdentity."));
    }
    let arn = format!("arn:aws:iam::{ACCOUNT}:user/simulator");
    Ok(xml(format!(
        "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <GetCallerIdentityResult><Arn>{arn}</Arn><UserId>AIDASIMULATOR</UserId>\
         <Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
    )))
}

/// A refusal as the query protocol words it: the name without `Exception`.
pub(super) fn refuse(refusal: &Refusal) -> Reply {
    let name = refusal.name.strip_suffix("Exception").unwrap_or(refusal.name);
    let message = refusal.message.replace('&', "&amp;").replace('<', "&lt;");
    let mut reply = xml(format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error>\
         <Type>Sender</Type><Code>{name}</Code><Message>{message}</Message></Error></ErrorResponse>"
    ));
    *reply.status_mut() = refusal.status;
    reply
}

fn xml(text: String) -> Reply {
    let mut reply = Response::new(AnswerBody::Whole(Some(Bytes::from(text))));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    reply
}
