//! SNS's posts, over HTTP to the record; and forgeries, which change nothing.
//!
//! The certificates' host is a server over TLS on this machine, found through the one seam there
//! is: the trust that the verifier is made with. `keys` has two keys for these tests, worth
//! nothing elsewhere.

use std::sync::Arc;
use std::time::Duration;

use pillarbox::domain::id::MessageId;
use pillarbox::domain::message::Status;
use pillarbox::feedback::Counts;
use pillarbox::feedback::sns::Posts;
use pillarbox::http;
use pillarbox::http::drain::Drain;
use pillarbox::http::provider::{self, ProviderApi};
use pillarbox::ses::credentials::Credentials;
use pillarbox::ses::sns::{TopicArn, Trust, Verifier};
use pillarbox::ses::{SesClient, SesOptions};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::document::delivery;
use crate::site::{NOW, Site};

use pki::{Authority, NAME, Years, sign, sns_key};
use web::{Web, ok};

mod believed;
mod bounds;
mod confirmed;
mod forged;
mod pki;
mod service;
mod untrusted;
mod web;

const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:pillarbox";
const HOST: &str = "sns.eu-west-1.amazonaws.com";
const FILE: &str = "SimpleNotificationService-7506a1e35b36ef5a444dd1a8e7cc3ed8.pem";
/// The years around the tests' own time.
const NOWADAYS: Years = Years(2026, 2028);

/// The listener, with all that it talks to.
struct Place {
    site: Site,
    authority: Authority,
    /// SNS's host for certificates.
    host: Web,
    /// AWS's API.
    aws: Web,
    client: reqwest::Client,
    url: String,
    message: MessageId,
    _drain: Drain,
    _directory: TempDir,
}

impl Place {
    async fn new() -> Self {
        Self::with_host_of(None).await
    }

    /// A place where the certificates' host has its own TLS certificate from this authority.
    async fn with_host_of(foreign: Option<&Authority>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::in_directory(directory.path()).await;
        let message = site.new_message().await;
        let authority = Authority::new("Amazon RSA 2048 M01");
        let tls = foreign.unwrap_or(&authority).tls(HOST);
        let certificate = authority.issue(&sns_key(), NAME, NOWADAYS);
        let host = Web::start(Some(tls), ok(&certificate)).await;
        let aws = Web::start(None, ok(confirmed::ANSWER)).await;
        let options = SesOptions {
            region: "us-east-1".to_owned(),
            endpoint: Some(format!("http://{}", aws.address)),
            configuration_set: None,
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
            credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
        };
        let ses = SesClient::new(options, site.clock.clone()).unwrap();
        let trust = Trust::Only { roots: vec![authority.root.clone()], address: host.address };
        let topics = vec![TopicArn::parse(TOPIC).unwrap()];
        let verifier = Verifier::new(topics, &trust, site.clock.clone()).unwrap();
        let posts = Arc::new(Posts::new(Arc::clone(&site.feedback), verifier, ses));
        let limits = provider::limits();
        let api = ProviderApi::new(posts, &limits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{}", listener.local_addr().unwrap(), provider::PATH);
        let (drain, signal) = Drain::new();
        tokio::spawn(http::serve(listener, api, limits, signal));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            site,
            authority,
            host,
            aws,
            client,
            url,
            message,
            _drain: drain,
            _directory: directory,
        }
    }

    /// SNS's post that the message was delivered.
    fn delivery(&self) -> Value {
        let mut post = json!({
            "Type": "Notification",
            "MessageId": "5dc2e5d1-0000-5000-8000-000000000000",
            "TopicArn": TOPIC,
            "Subject": "Amazon SES Email Event Notification",
            "Message": delivery(self.message).to_string() + "\n",
            "Timestamp": NOW.to_string(),
            "SignatureVersion": "2",
            "SigningCertURL": format!("https://{HOST}/{FILE}"),
            "UnsubscribeURL": format!("https://{HOST}/?Action=Unsubscribe"),
        });
        sign(&mut post, &sns_key());
        post
    }

    /// Posts a document, as SNS does; the status of the answer.
    async fn post(&self, post: &Value) -> u16 {
        self.post_text(post.to_string()).await
    }

    async fn post_text(&self, body: String) -> u16 {
        let request = self.client.post(&self.url).header("content-type", "text/plain").body(body);
        request.send().await.unwrap().status().as_u16()
    }

    /// That a post is refused and changes nothing, having caused so many fetches; and that the
    /// good one, before which it came, is taken.
    async fn is_forged(&self, post: &Value, fetches: usize) {
        assert_eq!(self.post(post).await, 403, "{post}");
        self.is_unchanged();
        assert_eq!(self.site.feedback.counts(), Counts { forged: 1, ..Counts::default() });
        assert_eq!(self.host.requests().len(), fetches);
        assert_eq!(self.aws.connections(), 0);
        self.serve_good_certificate();
        self.site.clock.advance(Duration::from_mins(1));
        assert_eq!(self.post(&self.delivery()).await, 200);
        assert_eq!(self.site.events(self.message), 1);
    }

    fn is_unchanged(&self) {
        assert_eq!(self.site.events(self.message), 0);
        assert_eq!(self.status(), Status::Queued);
    }

    fn status(&self) -> Status {
        self.site.store.message(self.message, NOW).unwrap().unwrap().status()
    }

    fn serve(&self, certificate: String) {
        self.host.answer(move |_| ok(&certificate));
    }

    fn serve_good_certificate(&self) {
        self.serve(self.authority.issue(&sns_key(), NAME, NOWADAYS));
    }
}
