//! Identities: which senders are verified, and how created ones become so.
//!
//! Knows SES's answers about identities. Must not know messages or connections.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::address::{Address, check_domain};
use super::answer::Refusal;
use super::faults::nth_random;
use super::send::read_json;

/// SES: identities per account and region.
const MAX_IDENTITIES: usize = 10_000;
/// What Easy DKIM gives: three tokens of 32 characters.
const DKIM_TOKENS: u64 = 3;
const DKIM_TOKEN_CHARS: u64 = 32;

/// How an identity that was created over the API becomes verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifiedBy {
    /// By the n-th `GetEmailIdentity`.
    Look(u32),
    /// By the time since its creation.
    Age(Duration),
    /// Never.
    Nothing,
}

/// Who may send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SenderCheck {
    /// Verified identities and the sub-domains of verified domains, as at SES.
    #[default]
    VerifiedOnly,
    /// Everybody.
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
    /// As it is, verified for example, until told otherwise.
    Given(VerificationStatus),
    Created {
        at: Instant,
        looks: u32,
    },
}

/// How far verification is, in SES's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum VerificationStatus {
    /// SES has not begun to look.
    NotStarted,
    /// SES has not found the DNS records yet.
    Pending,
    /// SES found them.
    Success,
    /// SES has given up, or they are gone.
    Failed,
    /// SES could not look.
    TemporaryFailure,
}

/// An identity in `ListEmailIdentities`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Listed<'a> {
    identity_type: &'static str,
    identity_name: &'a str,
    sending_enabled: bool,
    verification_status: VerificationStatus,
}

/// All identities, by their normal form.
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
        let identity = self.known.entry(normal_form(name)).or_insert(Identity {
            origin: Origin::Given(status),
            configuration_set: None,
            mail_from: None,
        });
        identity.origin = origin;
    }

    /// Forgets an identity, as if it had been deleted.
    pub(super) fn remove(&mut self, name: &str) {
        self.known.remove(&normal_form(name));
    }

    /// Whether mail from this address is sent: its own identity, its domain's, or that of a
    /// parent domain is verified.
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

    /// `CreateEmailIdentity`.
    pub(super) fn create(
        &mut self,
        name: &str,
        configuration_set: Option<String>,
        now: Instant,
    ) -> Result<Value, Refusal> {
        check_name(name)?;
        let key = normal_form(name);
        if self.known.contains_key(&key) {
            return Err(Refusal::already_exists(format!("Email identity {name} already exist.")));
        }
        if self.known.len() >= MAX_IDENTITIES {
            return Err(Refusal::limit_exceeded(format!(
                "Cannot have more than {MAX_IDENTITIES} identities."
            )));
        }
        let answer = json!({
            "IdentityType": identity_type(&key),
            "VerifiedForSendingStatus": false,
            "DkimAttributes": dkim_attributes(&key, VerificationStatus::NotStarted, &self.dkim_zone),
        });
        let origin = Origin::Created { at: now, looks: 0 };
        self.known.insert(key, Identity { origin, configuration_set, mail_from: None });
        Ok(answer)
    }

    /// `GetEmailIdentity`, which is also what moves [`VerifiedBy::Look`] on.
    pub(super) fn look(&mut self, name: &str, now: Instant) -> Result<Value, Refusal> {
        let key = normal_form(name);
        let identity = self
            .known
            .get_mut(&key)
            .ok_or_else(|| Refusal::not_found(format!("Email identity {name} does not exist.")))?;
        if let Origin::Created { looks, .. } = &mut identity.origin {
            *looks = looks.saturating_add(1);
        }
        let status = identity.status(self.verified_by, now);
        let mut answer = json!({
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
            answer["ConfigurationSetName"] = json!(set);
        }
        if matches!(status, VerificationStatus::Failed | VerificationStatus::TemporaryFailure) {
            answer["VerificationInfo"] = json!({ "ErrorType": "HOST_NOT_FOUND" });
        }
        Ok(answer)
    }

    /// `PutEmailIdentityMailFromAttributes`.
    pub(super) fn put_mail_from(&mut self, name: &str, body: &[u8]) -> Result<Value, Refusal> {
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
            return Err(Refusal::constraint(
                "behaviorOnMxFailure",
                "Member must satisfy enum value set: [USE_DEFAULT_VALUE, REJECT_MESSAGE]",
            ));
        }
        let key = normal_form(name);
        let identity = self
            .known
            .get_mut(&key)
            .ok_or_else(|| Refusal::not_found(format!("Email identity {name} does not exist.")))?;
        if let Some(domain) = &wire.mail_from_domain
            && !domain.to_ascii_lowercase().ends_with(&format!(".{key}"))
        {
            return Err(Refusal::bad_request(format!(
                "Provided MAIL-FROM domain <{domain}> is not subdomain of the domain of the \
                 identity <{name}>."
            )));
        }
        identity.mail_from = wire.mail_from_domain;
        Ok(json!({}))
    }

    /// `ListEmailIdentities`, all on one page.
    pub(super) fn list(&self, now: Instant) -> Value {
        let listed: Vec<_> = self
            .known
            .iter()
            .map(|(name, identity)| {
                let verification_status = identity.status(self.verified_by, now);
                Listed {
                    identity_type: identity_type(name),
                    identity_name: name,
                    sending_enabled: verification_status == VerificationStatus::Success,
                    verification_status,
                }
            })
            .collect();
        json!({ "EmailIdentities": listed })
    }
}

impl Identity {
    fn status(&self, by: VerifiedBy, now: Instant) -> VerificationStatus {
        let done = match (&self.origin, by) {
            (Origin::Given(status), _) => return *status,
            (Origin::Created { looks, .. }, VerifiedBy::Look(n)) => *looks >= n,
            (Origin::Created { at, .. }, VerifiedBy::Age(age)) => {
                now.saturating_duration_since(*at) >= age
            }
            (Origin::Created { .. }, VerifiedBy::Nothing) => false,
        };
        if done { VerificationStatus::Success } else { VerificationStatus::Pending }
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let valid = if name.contains('@') {
        Address::parse(name).map(drop)
    } else {
        check_domain(name).and_then(|()| {
            let has_dot = name.contains('.');
            if has_dot { Ok(()) } else { Err(Refusal::bad_request("Domain has no dot")) }
        })
    };
    valid.map_err(|_| Refusal::bad_request(format!("Invalid email identity name: {name}.")))
}

/// Domains know no case; of an address only the domain does not.
fn normal_form(name: &str) -> String {
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

/// A token in the look of Easy DKIM's, always the same for the same domain.
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
