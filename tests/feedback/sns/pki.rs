//! Certificates and signatures, as SNS would make them, and as others would.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_RSA_SHA256, PublicKeyData, SigningKey as _, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};

/// The name in SNS's certificates in the older regions.
pub(crate) const NAME: &str = "sns.amazonaws.com";

/// An authority with a root certificate.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) root: CertificateDer<'static>,
    pub(crate) pem: String,
}

/// From when to when a certificate is good: years.
#[derive(Clone, Copy)]
pub(crate) struct Years(pub(crate) i32, pub(crate) i32);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), root: root.der().clone(), pem: root.pem() }
    }

    /// A certificate for this key.
    pub(crate) fn issue(&self, key: &impl PublicKeyData, name: &str, years: Years) -> String {
        server(name, years).signed_by(key, &self.issuer).unwrap().pem()
    }

    /// A certificate for this key that ends as this day begins: year, month, day.
    pub(crate) fn issue_until(&self, key: &KeyPair, (year, month, day): (i32, u8, u8)) -> String {
        let mut params = server(NAME, Years(2026, 2100));
        params.not_after = date_time_ymd(year, month, day);
        params.signed_by(key, &self.issuer).unwrap().pem()
    }

    /// What a TLS server for SNS's host needs.
    pub(crate) fn tls(&self, host: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = server(host, Years(2020, 2100)).signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }
}

/// A certificate that nobody but its own key vouches for.
pub(crate) fn self_signed(key: &KeyPair) -> String {
    server(NAME, Years(2026, 2028)).self_signed(key).unwrap().pem()
}

fn server(name: &str, years: Years) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = date_time_ymd(years.0, 1, 1);
    params.not_after = date_time_ymd(years.1, 1, 1);
    params
}

/// The key that SNS signs with, for these tests.
pub(crate) fn sns_key() -> KeyPair {
    key(include_str!("keys/sns.pem"))
}

/// Somebody else's key.
pub(crate) fn other_key() -> KeyPair {
    key(include_str!("keys/other.pem"))
}

fn key(pem: &str) -> KeyPair {
    KeyPair::from_pkcs8_pem_and_sign_algo(pem, &PKCS_RSA_SHA256).unwrap()
}

/// Signs a post by version 2, over what it says.
pub(crate) fn sign(post: &mut Value, key: &KeyPair) {
    let fields: &[&str] = if post["Type"] == "Notification" {
        &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    } else {
        &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    };
    let text: String = fields
        .iter()
        .filter_map(|field| Some(format!("{field}\n{}\n", post[*field].as_str()?)))
        .collect();
    post["Signature"] = json!(STANDARD.encode(key.sign(text.as_bytes()).unwrap()));
}
