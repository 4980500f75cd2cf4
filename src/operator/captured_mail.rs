//! Messages that a stand-in for the provider was given, if one in this process keeps them (`dev`,
//! test organisations): shown so that nothing in a message acts.
//!
//! A message's HTML is a document of its own, framed by the page without any right. Must not know
//! the stand-in.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::key::PageKey;
use crate::{HTML, page_json, page_response};
use pillarbox_http::body::ResponseBody;
use pillarbox_http::rejection::Rejection;

use inline_images::show_images;
use sanitize::sanitize;

mod inline_images;
mod sanitize;

/// Messages in a list: all that are kept of one test organisation.
const LISTED: usize = 200;
/// Policy of a message's HTML: it may have styles, and pictures that it brings along. No script, no
/// form, no link that is followed, and nothing from elsewhere, so that the sender cannot see that
/// it was opened. The sandbox also holds if the document is opened by itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox";
/// The media type of every file, independent of its own type.
const FILE: &str = "application/octet-stream";
/// Policy of a file, if a browser should show it after all: it may do nothing.
const FILE_POLICY: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";
/// Names in links are not resolved either: policies do not cover that.
const PREFETCH: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-dns-prefetch-control"), HeaderValue::from_static("off"));

/// Stand-in that catches messages, and keeps the last of them in memory.
pub trait Catcher: Debug + Send + Sync {
    /// Number of messages that were caught since the start.
    fn total(&self) -> u64;
    /// Names of the test organisations that messages are kept of.
    fn organisations(&self) -> Vec<String>;
    /// The newest first, of one test organisation or of all, at most so many.
    fn newest(&self, organisation: Option<&str>, limit: usize) -> Vec<Summary>;
    /// A message that is still kept.
    fn message(&self, id: &str) -> Option<Caught>;
}

/// A line of a list.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The id that the provider gave it.
    pub id: String,
    /// Time at which it was caught.
    pub caught_at: String,
    /// The sender, as the provider was given it.
    pub from: String,
    /// The recipients in To, likewise.
    pub to: Vec<String>,
    /// The subject in clear.
    pub subject: String,
    /// The id of the message in pillarbox, as the provider received it.
    pub message: Option<String>,
    /// The name of its organisation, likewise.
    pub organisation: Option<String>,
}

/// A message as the provider was given it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Caught {
    /// Part of it that the list shows.
    #[serde(flatten)]
    pub summary: Summary,
    /// The recipients in Cc.
    pub cc: Vec<String>,
    /// The recipients in Bcc.
    pub bcc: Vec<String>,
    /// Addresses that replies go to.
    pub reply_to: Vec<String>,
    /// Further headers with their values, in their order.
    pub headers: Vec<(String, String)>,
    /// Text part, if there is one.
    pub text: Option<String>,
    /// The HTML, as it came.
    pub html: Option<String>,
    /// The files that came with it.
    #[serde(skip)]
    pub files: Vec<CaughtFile>,
}

/// A file that came with a message.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaughtFile {
    /// Name of the file.
    pub name: String,
    /// Its media type, as the provider was given it.
    pub media_type: Option<String>,
    /// The name by which the HTML shows it.
    pub content_id: Option<String>,
    /// Content of the file.
    #[serde(skip)]
    pub content: Bytes,
}

#[derive(Serialize)]
struct Listing {
    messages: Vec<Summary>,
    /// The test organisations that messages are kept of.
    organisations: Vec<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    caught: &'a Caught,
    /// Path of its HTML, as a document to be framed.
    frame: Option<String>,
    files: Vec<FileLink<'a>>,
}

/// A file in a document.
#[derive(Serialize)]
struct FileLink<'a> {
    #[serde(flatten)]
    file: &'a CaughtFile,
    /// Size of the file, in bytes.
    size: usize,
    /// Path at which it can be downloaded.
    download: String,
}

/// Request of the page for a caught message or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path<'a> {
    List,
    Message(&'a str),
    /// The HTML of a message. A frame cannot send the page's key, so its address holds a ticket.
    Frame {
        id: &'a str,
        ticket: &'a str,
    },
    /// A file of a message, to be kept and not shown. A download cannot send the page's key either.
    File {
        /// The message's id and the file's number, from 0: `id/number`.
        place: &'a str,
        ticket: &'a str,
    },
}

impl<'a> Path<'a> {
    /// The path of what is below `/page/caught`.
    pub(super) fn of(rest: Option<&'a str>) -> Self {
        let Some(rest) = rest else { return Self::List };
        match rest.rsplit_once('/') {
            Some((place, ticket)) if place.contains('/') => Self::File { place, ticket },
            Some((id, ticket)) => Self::Frame { id, ticket },
            None => Self::Message(rest),
        }
    }
}

/// Answers for a path that the key, or the ticket in it, opens. A list has the messages of one test
/// organisation if one is named.
pub(super) fn answer(
    path: Path<'_>,
    organisation: Option<&str>,
    catcher: Option<&Arc<dyn Catcher>>,
    key: &PageKey,
) -> Result<Response<ResponseBody>, Rejection> {
    let catcher = catcher.ok_or(Rejection::NotFound)?;
    match path {
        Path::List => {
            let messages = catcher.newest(organisation, LISTED);
            let organisations = catcher.organisations();
            Ok(page_json(StatusCode::OK, &Listing { messages, organisations }))
        }
        Path::Message(id) => {
            let caught = catcher.message(id).ok_or(Rejection::NotFound)?;
            let frame =
                caught.html.as_ref().map(|_| format!("/page/caught/{id}/{}", key.ticket(id)));
            let files = caught.files.iter().enumerate().map(|(number, file)| {
                let place = format!("{id}/{number}");
                let download = format!("/page/caught/{place}/{}", key.ticket(&place));
                FileLink { file, size: file.content.len(), download }
            });
            let files = files.collect();
            Ok(page_json(StatusCode::OK, &Document { caught: &caught, frame, files }))
        }
        Path::Frame { id, .. } => {
            let caught = catcher.message(id).ok_or(Rejection::NotFound)?;
            let html = caught.html.ok_or(Rejection::NotFound)?;
            let html = show_images(&sanitize(&html), &caught.files);
            Ok(acting_nowhere(HTML, POLICY, html, PREFETCH))
        }
        Path::File { place, .. } => {
            let (id, number) = place.split_once('/').ok_or(Rejection::NotFound)?;
            let number: usize = number.parse().map_err(|_| Rejection::NotFound)?;
            let files = catcher.message(id).map(|caught| caught.files).unwrap_or_default();
            Ok(download(files.get(number).ok_or(Rejection::NotFound)?))
        }
    }
}

/// A file that browsers keep and do not show: no file of any type acts here.
fn download(file: &CaughtFile) -> Response<ResponseBody> {
    let name = utf8_percent_encode(&file.name, NON_ALPHANUMERIC);
    let disposition = HeaderValue::try_from(format!("attachment; filename*=UTF-8''{name}"));
    let disposition = disposition.expect("percent encoding is ASCII");
    acting_nowhere(FILE, FILE_POLICY, file.content.clone(), (CONTENT_DISPOSITION, disposition))
}

/// Returns a part of a message with a policy of its own, and another header.
fn acting_nowhere(
    media_type: &'static str,
    policy: &'static str,
    content: impl Into<Bytes>,
    (name, value): (HeaderName, HeaderValue),
) -> Response<ResponseBody> {
    let body = Full::from(content.into()).into();
    let mut response = page_response(StatusCode::OK, media_type, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(name, value);
    response
}
