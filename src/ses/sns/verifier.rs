//! Whether a post is SNS's own, and for a topic that is believed.
//!
//! What costs nothing is checked first, and nothing is fetched for a topic that is not believed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::TrustAnchor;

use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::ses::sns::TopicArn;
use crate::ses::sns::certificate::CertificateError;
use crate::ses::sns::certificates::{Certificates, FetchError, NoClient, Trust};
use crate::ses::sns::origin::{ForeignUrl, Origin, UnknownPartition};
use crate::ses::sns::post::{Malformed, Post, Verified};

/// How far a post's time may be from now, before or after: a post that somebody has kept is of no
/// use later. SNS repeats a post within a minute or so ("Amazon SNS message delivery retries").
const MAX_AGE: Duration = Duration::from_hours(1);
/// The version with SHA-256. Version 1 is SHA-1, for which collisions can be made.
const SIGNATURE_VERSION: &str = "2";

/// Verifies posts for some topics.
#[derive(Debug)]
pub struct Verifier {
    origins: Vec<Origin>,
    certificates: Certificates,
    roots: Vec<TrustAnchor<'static>>,
    clock: Clock,
}

/// Why there can be no verifier.
#[derive(Debug, thiserror::Error)]
pub enum VerifierError {
    /// A topic cannot be verified.
    #[error(transparent)]
    Topic(#[from] UnknownPartition),
    /// There is no client to fetch certificates with.
    #[error(transparent)]
    Client(#[from] NoClient),
}

/// A post that is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// The topic that it is said to be from, where that is one that is believed.
    pub topic: Option<TopicArn>,
    /// Why it is not believed.
    pub why: Reason,
}

/// Why a post is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It is nothing that SNS posts.
    #[error("it is no post of SNS's: {0}")]
    Malformed(#[from] Malformed),
    /// Its topic, named here where it is the ARN of one, is not on the list.
    #[error("its topic is not one that is believed")]
    ForeignTopic(Option<TopicArn>),
    /// It is signed with SHA-1.
    #[error("it is signed with version 1, which is SHA-1")]
    Version1,
    /// It is signed in no way that is known.
    #[error("its signature's version is not known")]
    UnknownVersion,
    /// It is not from now.
    #[error("it is over an hour older or newer than now")]
    Stale,
    /// Its certificate would come from somebody else.
    #[error(transparent)]
    CertificateUrl(#[from] ForeignUrl),
    /// Its certificate cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Its certificate is not one of SNS's that is good now.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Its signature is wrong.
    #[error("its signature is wrong")]
    Signature,
}

impl Reason {
    /// Whether the same post may be believed another time.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Fetch(error) => error.is_temporary(),
            Self::Malformed(_)
            | Self::ForeignTopic(_)
            | Self::Version1
            | Self::UnknownVersion
            | Self::Stale
            | Self::CertificateUrl(_)
            | Self::Certificate(_)
            | Self::Signature => false,
        }
    }

    /// Whether it was judged by the wall clock: where that is wrong, so may this be.
    pub fn is_of_time(&self) -> bool {
        match self {
            Self::Stale => true,
            Self::Certificate(error) => {
                matches!(error, CertificateError::Expired | CertificateError::NotYetValid)
            }
            Self::Malformed(_)
            | Self::ForeignTopic(_)
            | Self::Version1
            | Self::UnknownVersion
            | Self::CertificateUrl(_)
            | Self::Fetch(_)
            | Self::Signature => false,
        }
    }
}

impl Verifier {
    /// A verifier that believes posts for these topics alone.
    pub fn new(topics: Vec<TopicArn>, trust: &Trust, clock: Clock) -> Result<Self, VerifierError> {
        let origins = topics.into_iter().map(Origin::of).collect::<Result<_, _>>()?;
        let certificates = Certificates::new(trust, clock.clone())?;
        Ok(Self { origins, certificates, roots: trust.anchors(), clock })
    }

    /// The topics that are believed.
    pub fn topics(&self) -> impl Iterator<Item = &TopicArn> {
        self.origins.iter().map(|origin| &origin.topic)
    }

    /// Verifies a post, given its body.
    pub async fn verify(&self, body: &[u8]) -> Result<Verified, Refused> {
        let refused = |why| Refused { topic: None, why };
        let post = Post::read(body).map_err(|error| refused(error.into()))?;
        let origin = self.origins.iter().find(|origin| origin.topic.as_str() == post.topic_arn);
        let Some(origin) = origin else {
            return Err(refused(Reason::ForeignTopic(TopicArn::parse(&post.topic_arn).ok())));
        };
        let topic = origin.topic.clone();
        match self.check(&post, origin).await {
            Ok(()) => Ok(post.into_verified(topic)),
            Err(why) => Err(Refused { topic: Some(topic), why }),
        }
    }

    async fn check(&self, post: &Post, origin: &Origin) -> Result<(), Reason> {
        match post.signature_version.as_str() {
            SIGNATURE_VERSION => {}
            "1" => return Err(Reason::Version1),
            _ => return Err(Reason::UnknownVersion),
        }
        let signature = STANDARD.decode(&post.signature).map_err(|_| Reason::Signature)?;
        if signature.is_empty() {
            return Err(Reason::Signature);
        }
        let now = self.clock.now();
        let time = Timestamp::parse_rfc3339(&post.timestamp).map_err(|_| Reason::Stale)?;
        if Duration::from_millis(now.unix_millis().abs_diff(time.unix_millis())) > MAX_AGE {
            return Err(Reason::Stale);
        }
        origin.check_url(&post.signing_cert_url)?;
        let certificate = self.certificates.get(&post.signing_cert_url).await?;
        certificate.check(origin.names(), &self.roots, now)?;
        certificate
            .verify(post.string_to_sign().as_bytes(), &signature)
            .map_err(|_| Reason::Signature)
    }
}
