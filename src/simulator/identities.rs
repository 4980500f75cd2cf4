//! Identities: the senders that are verified, and how new ones become verified.
//!
//! Knows SES's responses about identities. Must not know messages or connections.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::address::{Address, check_domain};
use super::protocol::{ErrorResponse, read_json, required};
use super::random::nth_random;

/// SES: identities per account and region.
const MAX_IDENTITIES: usize = 10_000;
/// Easy DKIM gives three tokens of 32 characters.
const DKIM_TOKENS: u64 = 3;
const DKIM_TOKEN_CHARS: u64 = 32;

/// Condition under which an identity that was created over the API becomes verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifiedBy {
    /// By the n-th `GetEmailIdentity`.
    Lookup(u32),
    /// By the time since its creation.
    Age(Duration),
    /// It stays unverified.
    Nothing,
}

/// The senders that may send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SenderCheck {
    /// Verified identities and the sub-domains of verified domains, as at SES.
    #[default]
    VerifiedOnly,
    /// Any sender is accepted.
    Anyone,
}

#[derive(Debug)]
struct Identity {
    origin: Origin,
    configuration_set: Option<String>,
    mail_from: Option<String>,
}

#[derive(Debug)]
enum Origin {
    /// As it is given, verified for example, until a request changes it.
    Given(VerificationStatus),
    Created {
        at: Instant,
        lookups: u32,
    },
}

/// State of the verification, in SES's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum VerificationStatus {
    /// SES has not begun to check.
    NotStarted,
    /// SES has not found the DNS records yet.
    Pending,
    /// SES found the records.
    Success,
    /// SES has stopped the search, or the records were removed.
    Failed,
    /// SES could not check.
    TemporaryFailure,
}

/// All identities, by their normalized names.
#[derive(Debug)]
pub(super) struct Identities {
    known: BTreeMap<String, Identity>,
    verified_by: VerifiedBy,
    sender_check: SenderCheck,
    dkim_zone: String,
}

impl Identities {
    pub(super) fn new(
        verified: &[String],
        verified_by: VerifiedBy,
        sender_check: SenderCheck,
        dkim_zone: String,
    ) -> Self {
        let known = BTreeMap::new();
        let mut identities = Self { known, verified_by, sender_check, dkim_zone };
        for name in verified {
            identities.verify(name);
        }
        identities
    }

    /// Makes an identity verified, known before or not.
    pub(super) fn verify(&mut self, name: &str) {
        self.set(name, VerificationStatus::Success);
    }

    /// Holds an identity, known before or not, in this state.
    pub(super) fn set(&mut self, name: &str, status: VerificationStatus) {
        let origin = Origin::Given(status);
        let identity = self.known.entry(normalized(name)).or_insert(Identity {
            origin: Origin::Given(status),
            configuration_set: None,
            mail_from: None,
        });
        identity.origin = origin;
    }

    /// Forgets an identity, as if it had been deleted.
    pub(super) fn remove(&mut self, name: &str) {
        self.known.remove(&normalized(name));
    }

    /// Decides if mail from this address is sent: the identity of the address, of its domain or of
    /// a parent domain must be verified.
    pub(super) fn may_send(&self, from: Address<'_>, now: Instant) -> bool {
        if self.sender_check == SenderCheck::Anyone {
            return true;
        }
        let domain = from.domain.to_ascii_lowercase();
        let mut parent = Some(domain.as_str());
        while let Some(name) = parent {
            if self.is_verified(name, now) {
                return true;
            }
            parent = name.split_once('.').map(|(_, rest)| rest);
        }
        self.is_verified(&format!("{}@{domain}", from.local), now)
    }

    fn is_verified(&self, name: &str, now: Instant) -> bool {
        let identity = self.known.get(name);
        identity
            .is_some_and(|known| known.status(self.verified_by, now) == VerificationStatus::Success)
    }

    /// `CreateEmailIdentity`. `check_configuration_set` fails unless there is a set of this name.
    pub(super) fn create(
        &mut self,
        body: &[u8],
        check_configuration_set: impl FnOnce(&str) -> Result<(), ErrorResponse>,
        now: Instant,
    ) -> Result<Value, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            email_identity: Option<String>,
            configuration_set_name: Option<String>,
        }
        let Wire { email_identity, configuration_set_name: configuration_set } = read_json(body)?;
        let name = required(email_identity, "emailIdentity")?;
        configuration_set.as_deref().map_or(Ok(()), check_configuration_set)?;
        check_name(&name)?;
        let key = normalized(&name);
        if self.known.contains_key(&key) {
            return Err(ErrorResponse::already_exists(format!(
                "Email identity {name} already exist."
            )));
        }
        if self.known.len() >= MAX_IDENTITIES {
            return Err(ErrorResponse::limit_exceeded(format!(
                "Cannot have more than {MAX_IDENTITIES} identities."
            )));
        }
        let response = json!({
            "IdentityType": identity_type(&key),
            "VerifiedForSendingStatus": false,
            "DkimAttributes": dkim_attributes(&key, VerificationStatus::NotStarted, &self.dkim_zone),
        });
        let origin = Origin::Created { at: now, lookups: 0 };
        self.known.insert(key, Identity { origin, configuration_set, mail_from: None });
        Ok(response)
    }

    /// `GetEmailIdentity`, which also counts for [`VerifiedBy::Lookup`].
    pub(super) fn get(&mut self, name: &str, now: Instant) -> Result<Value, ErrorResponse> {
        let key = normalized(name);
        let identity = self.known.get_mut(&key).ok_or_else(|| no_identity(name))?;
        if let Origin::Created { lookups, .. } = &mut identity.origin {
            *lookups = lookups.saturating_add(1);
        }
        let status = identity.status(self.verified_by, now);
        let mut response = json!({
            "IdentityType": identity_type(&key),
            "FeedbackForwardingStatus": true,
            "VerifiedForSendingStatus": status == VerificationStatus::Success,
            "DkimAttributes": dkim_attributes(&key, status, &self.dkim_zone),
            "MailFromAttributes": mail_from_attributes(identity.mail_from.as_deref(), status),
            "Policies": {},
            "Tags": [],
            "VerificationStatus": status,
        });
        if let Some(set) = &identity.configuration_set {
            response["ConfigurationSetName"] = json!(set);
        }
        if matches!(status, VerificationStatus::Failed | VerificationStatus::TemporaryFailure) {
            response["VerificationInfo"] = json!({ "ErrorType": "HOST_NOT_FOUND" });
        }
        Ok(response)
    }

    /// `PutEmailIdentityMailFromAttributes`.
    pub(super) fn put_mail_from(
        &mut self,
        name: &str,
        body: &[u8],
    ) -> Result<Value, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            mail_from_domain: Option<String>,
            behavior_on_mx_failure: Option<String>,
        }
        let wire: Wire = read_json(body)?;
        if let Some(behavior) = wire.behavior_on_mx_failure
            && !["USE_DEFAULT_VALUE", "REJECT_MESSAGE"].contains(&behavior.as_str())
        {
            return Err(ErrorResponse::constraint(
                "behaviorOnMxFailure",
                "Member must satisfy enum value set: [USE_DEFAULT_VALUE, REJECT_MESSAGE]",
            ));
        }
        let key = normalized(name);
        let identity = self.known.get_mut(&key).ok_or_else(|| no_identity(name))?;
        if let Some(domain) = &wire.mail_from_domain
            && !domain.to_ascii_lowercase().ends_with(&format!(".{key}"))
        {
            return Err(ErrorResponse::bad_request(format!(
                "Provided MAIL-FROM domain <{domain}> is not subdomain of the domain of the \
                 identity <{name}>."
            )));
        }
        identity.mail_from = wire.mail_from_domain;
        Ok(json!({}))
    }

    /// `ListEmailIdentities`, all on one page.
    pub(super) fn list(&self, now: Instant) -> Value {
        let listed = self.known.iter().map(|(name, identity)| {
            let status = identity.status(self.verified_by, now);
            json!({
                "IdentityType": identity_type(name),
                "IdentityName": name,
                "SendingEnabled": status == VerificationStatus::Success,
                "VerificationStatus": status,
            })
        });
        json!({ "EmailIdentities": listed.collect::<Vec<_>>() })
    }
}

impl Identity {
    fn status(&self, by: VerifiedBy, now: Instant) -> VerificationStatus {
        let done = match (&self.origin, by) {
            (Origin::Given(status), _) => return *status,
            (Origin::Created { lookups, .. }, VerifiedBy::Lookup(n)) => *lookups >= n,
            (Origin::Created { at, .. }, VerifiedBy::Age(age)) => {
                now.saturating_duration_since(*at) >= age
            }
            (Origin::Created { .. }, VerifiedBy::Nothing) => false,
        };
        if done { VerificationStatus::Success } else { VerificationStatus::Pending }
    }
}

fn no_identity(name: &str) -> ErrorResponse {
    ErrorResponse::not_found(format!("Email identity {name} does not exist."))
}

fn check_name(name: &str) -> Result<(), ErrorResponse> {
    let valid = if name.contains('@') {
        Address::parse(name).map(drop)
    } else {
        check_domain(name).and_then(|()| {
            let has_dot = name.contains('.');
            if has_dot { Ok(()) } else { Err(ErrorResponse::bad_request("Domain has no dot")) }
        })
    };
    valid.map_err(|_| ErrorResponse::bad_request(format!("Invalid email identity name: {name}.")))
}

/// A domain is the same in upper and lower case, and so is the domain of an address.
fn normalized(name: &str) -> String {
    match name.rsplit_once('@') {
        Some((local, domain)) => format!("{local}@{}", domain.to_ascii_lowercase()),
        None => name.to_ascii_lowercase(),
    }
}

fn identity_type(name: &str) -> &'static str {
    if name.contains('@') { "EMAIL_ADDRESS" } else { "DOMAIN" }
}

/// The MAIL FROM domain's records are found when the domain's own are.
fn mail_from_attributes(domain: Option<&str>, status: VerificationStatus) -> Value {
    match domain {
        None => json!({ "BehaviorOnMxFailure": "USE_DEFAULT_VALUE" }),
        Some(domain) => json!({
            "MailFromDomain": domain,
            "MailFromDomainStatus": status,
            "BehaviorOnMxFailure": "USE_DEFAULT_VALUE",
        }),
    }
}

fn dkim_attributes(name: &str, status: VerificationStatus, zone: &str) -> Value {
    if identity_type(name) == "EMAIL_ADDRESS" {
        return json!({
            "SigningEnabled": false,
            "Status": VerificationStatus::NotStarted,
            "SigningAttributesOrigin": "AWS_SES",
        });
    }
    json!({
        "SigningEnabled": true,
        "Status": status,
        "Tokens": (0..DKIM_TOKENS).map(|n| dkim_token(name, n)).collect::<Vec<_>>(),
        "SigningAttributesOrigin": "AWS_SES",
        "SigningHostedZone": zone,
        "NextSigningKeyLength": "RSA_2048_BIT",
        "CurrentSigningKeyLength": "RSA_2048_BIT",
    })
}

/// Makes a token in the form of Easy DKIM's, always the same for the same domain.
fn dkim_token(name: &str, index: u64) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let seed = name.bytes().fold(index, |seed, byte| nth_random(seed, u64::from(byte) + 1));
    (1..=DKIM_TOKEN_CHARS)
        .map(|n| {
            let five_bits = nth_random(seed, n) >> 59;
            char::from(ALPHABET[usize::try_from(five_bits).expect("five bits fit")])
        })
        .collect()
}
