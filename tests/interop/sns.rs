//! Events as moto's SNS posts and signs them.
//!
//! The signature is moto's own. Its certificate lacks the subject alternative name that all of
//! SNS's have, so the same public key is certified anew here; and the event is published without a
//! subject, because moto leaves the subject out of what it signs.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use form_urlencoded::Serializer;
use pillarbox::clock::Clock;
use pillarbox::feedback::sns::Posts;
use pillarbox::feedback::{Counts, Feedback};
use pillarbox::http;
use pillarbox::http::drain::Drain;
use pillarbox::http::provider::{self, ProviderApi};
use pillarbox::outbox::Outbox;
use pillarbox::ses::credentials::Credentials;
use pillarbox::ses::sns::{TopicArn, Trust, Verifier};
use pillarbox::ses::{SesClient, SesOptions};
use pillarbox::store::Store;
use rcgen::{PKCS_RSA_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::SecretString;
use tokio::net::TcpListener;
use webpki::EndEntityCert;

use pki::{Authority, NAME, Years};
use web::{Web, ok};

#[expect(dead_code, reason = "forgeries are tested elsewhere")]
#[path = "../feedback/sns/pki.rs"]
mod pki;
#[expect(dead_code, reason = "forgeries are tested elsewhere")]
#[path = "../feedback/sns/web.rs"]
mod web;

const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:pillarbox";
const EVENT: &str = include_str!("../feedback/documents/event-delivery-record.json");
/// Tells moto which service and region are meant; it checks no signature.
const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=AKID/20261121/eu-west-1/sns/aws4_request, \
                             SignedHeaders=host, Signature=0";

/// What comes before the key itself in the `SubjectPublicKeyInfo` of an RSA key of 2048 bits.
const SPKI_HEADER_BYTES: usize = 24;

/// The public key that moto signs with.
struct MotosKey(Vec<u8>);

impl PublicKeyData for MotosKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_RSA_SHA256
    }
}

/// Calls moto's SNS.
async fn call(client: &reqwest::Client, moto: &str, parameters: &[(&str, &str)]) {
    let body = Serializer::new("Version=2010-03-31&".to_owned()).extend_pairs(parameters).finish();
    let request = client.post(moto).header("authorization", AUTHORIZATION).body(body);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let answer = request.send().await.unwrap();
    let status = answer.status();
    assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap());
}

/// The certificate that moto serves there.
fn certificate(moto: &str, path: &str) -> CertificateDer<'static> {
    let address = moto.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: {AUTHORIZATION}\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    CertificateDer::from_pem_slice(answer.as_bytes()).unwrap_or_else(|_| panic!("{answer}"))
}

#[tokio::test]
async fn what_moto_publishes_and_signs_is_believed() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let (_moto, moto) = crate::start_moto(&client).await;
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let store = Store::open(directory.path(), clock.now()).unwrap().0;
    let outbox = Arc::new(Outbox::new(1 << 20));
    let feedback = Arc::new(Feedback::new(store, outbox, clock.clone()));

    let authority = Authority::new("Amazon RSA 2048 M01");
    let root = authority.root.clone();
    let tls = authority.tls("sns.eu-west-1.amazonaws.com");
    let host = Web::start(Some(tls), String::new()).await;
    let served_by = moto.clone();
    host.answer(move |request| {
        let path = request.split(' ').nth(1).unwrap();
        let certificate = certificate(&served_by, path);
        let key = EndEntityCert::try_from(&certificate).unwrap().subject_public_key_info();
        let key = MotosKey(key[SPKI_HEADER_BYTES..].to_vec());
        ok(&authority.issue(&key, NAME, Years(2020, 2100)))
    });
    let trust = Trust::Only { roots: vec![root], address: host.address };
    let topics = vec![TopicArn::parse(TOPIC).unwrap()];
    let verifier = Verifier::new(topics, &trust, clock.clone()).unwrap();
    let options = SesOptions {
        region: "eu-west-1".to_owned(),
        endpoint: Some(moto.clone()),
        configuration_set: None,
        request_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(30),
        credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
    };
    let ses = SesClient::new(options, clock).unwrap();
    let api = ProviderApi::new(
        Arc::new(Posts::new(Arc::clone(&feedback), verifier, ses)),
        &provider::limits(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}{}", listener.local_addr().unwrap(), provider::PATH);
    let (_drain, signal) = Drain::new();
    tokio::spawn(http::serve(listener, api, provider::limits(), signal));

    call(&client, &moto, &[("Action", "CreateTopic"), ("Name", "pillarbox")]).await;
    let subscribe = [
        ("Action", "Subscribe"),
        ("TopicArn", TOPIC),
        ("Protocol", "http"),
        ("Endpoint", &endpoint),
    ];
    call(&client, &moto, &subscribe).await;
    call(&client, &moto, &[("Action", "Publish"), ("TopicArn", TOPIC), ("Message", EVENT)]).await;

    let end = Instant::now() + crate::PATIENCE;
    while feedback.counts() == Counts::default() {
        assert!(Instant::now() < end, "moto posted nothing: {:?}", feedback.trouble());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The message is in nobody's store here: its event is kept for it.
    let expected = Counts { deliveries: 1, unmatched: 1, ..Counts::default() };
    assert_eq!(feedback.counts(), expected, "{:?}", feedback.trouble());
}
