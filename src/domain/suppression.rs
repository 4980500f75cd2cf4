//! Suppressions: addresses that an organisation must not write to any more.

use crate::domain::id::MessageId;
use crate::domain::mailbox::{Address, Mailbox, MailboxError};
use crate::domain::time::Timestamp;

/// An address in the form in which suppressions are stored and compared: domain as A-label,
/// unquoted, lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SuppressedAddress(String);

impl SuppressedAddress {
    /// The normal form of a bare address.
    pub fn parse(text: &str) -> Result<Self, MailboxError> {
        Ok(Self::from(&Address::parse(text)?))
    }

    /// The address of a recipient as a provider's report names it, which may carry a display name.
    pub fn of_recipient(text: &str) -> Option<Self> {
        if let Ok(mailbox) = Mailbox::parse(text) {
            return Some(Self::from(mailbox.address()));
        }
        // Providers write display names with less care than we ask of clients: what stands in the
        // angle brackets at the end is the address.
        let (_, address) = text.trim().strip_suffix('>')?.rsplit_once('<')?;
        Self::parse(address.trim()).ok()
    }

    /// An address that was normalized before it was stored.
    pub fn from_stored(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The normal form's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Address<'_>> for SuppressedAddress {
    fn from(address: &Address<'_>) -> Self {
        Self(address.normalized())
    }
}

/// Why an address is suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SuppressionReason {
    /// A permanent bounce.
    Bounce,
    /// A complaint.
    Complaint,
    /// The operator's decision.
    Manual,
}

impl SuppressionReason {
    /// The word for it, on every interface.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bounce => "bounce",
            Self::Complaint => "complaint",
            Self::Manual => "manual",
        }
    }
}

/// One suppressed address of an organisation, or of all of them. Never expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    /// The address.
    pub address: SuppressedAddress,
    /// Why.
    pub reason: SuppressionReason,
    /// Since when.
    pub since: Timestamp,
    /// The message that caused it, unless an operator did.
    pub cause: Option<MessageId>,
}
