//! Addresses as SES checks them, and what becomes of mail to them.
//!
//! A second, independent reading beside the service's own, so that what the service lets through
//! and SES would refuse comes to light. Must not know messages or HTTP.

use serde::Serialize;

use super::answer::Refusal;

/// The domain of SES's addresses with a meaning.
const MEANING_DOMAIN: &str = "simulator.amazonses.com";
/// RFC 5321 section 4.5.3.1.
const LOCAL_PART_MAX: usize = 64;
const DOMAIN_MAX: usize = 255;
const LABEL_MAX: usize = 63;

/// What SES would report for one recipient. The address alone decides; every address without a
/// meaning is delivered.
/// Source: <https://docs.aws.amazon.com/ses/latest/dg/send-an-email-from-console.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipientFate {
    /// A delivery.
    Delivered,
    /// A permanent bounce (SMTP 550 5.1.1).
    Bounced,
    /// A delivery, then a complaint.
    Complained,
    /// A delivery, then an automatic answer to the sender.
    OutOfOffice,
    /// A permanent bounce, because the address is on the suppression list.
    Suppressed,
}

impl RecipientFate {
    fn of(address: Address<'_>) -> Self {
        if !address.domain.eq_ignore_ascii_case(MEANING_DOMAIN) {
            return Self::Delivered;
        }
        let mailbox = address.local.split('+').next().unwrap_or_default();
        match mailbox.to_ascii_lowercase().as_str() {
            "bounce" => Self::Bounced,
            "complaint" => Self::Complained,
            "ooto" => Self::OutOfOffice,
            "suppressionlist" => Self::Suppressed,
            _ => Self::Delivered,
        }
    }
}

/// The two parts of a checked address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) local: &'a str,
    pub(super) domain: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `address` or `Display Name <address>`.
    pub(super) fn parse(text: &'a str) -> Result<Self, Refusal> {
        if !text.is_ascii() {
            return Err(illegal("Address contains characters outside 7-bit ASCII"));
        }
        if text.bytes().any(|b| b.is_ascii_control()) {
            return Err(illegal("Address contains control characters"));
        }
        let bare = bare_address(text.trim())?;
        let (local, domain) = bare.rsplit_once('@').ok_or(illegal("Missing final '@domain'"))?;
        check_local_part(local)?;
        check_domain(domain)?;
        Ok(Self { local, domain })
    }

    /// What becomes of mail to this address.
    pub(super) fn fate(self) -> RecipientFate {
        RecipientFate::of(self)
    }
}

fn bare_address(text: &str) -> Result<&str, Refusal> {
    let Some(inner) = text.strip_suffix('>') else { return Ok(text) };
    let (display_name, address) = inner.rsplit_once('<').ok_or(illegal("Illegal address"))?;
    let display_name = display_name.trim();
    let quoted =
        display_name.len() >= 2 && display_name.starts_with('"') && display_name.ends_with('"');
    if !quoted && display_name.contains(['<', '>', '@', ',', ';', '"']) {
        return Err(illegal("Illegal address"));
    }
    Ok(address.trim())
}

fn check_local_part(local: &str) -> Result<(), Refusal> {
    if local.is_empty() {
        return Err(illegal("User name is missing"));
    }
    if local.len() > LOCAL_PART_MAX {
        return Err(illegal("Local address is too long"));
    }
    if local.len() > 2 && local.starts_with('"') && local.ends_with('"') {
        return Ok(());
    }
    check_dots(local, "Local address")?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
    if local.bytes().all(allowed) {
        Ok(())
    } else {
        Err(illegal("Local address contains control or whitespace, or an illegal character"))
    }
}

/// The rules of a domain name; also those of a domain identity.
pub(super) fn check_domain(domain: &str) -> Result<(), Refusal> {
    if domain.is_empty() {
        return Err(illegal("Missing final '@domain'"));
    }
    check_dots(domain, "Domain")?;
    if domain.len() > DOMAIN_MAX || domain.split('.').any(|label| label.len() > LABEL_MAX) {
        return Err(illegal("Domain is too long"));
    }
    let hyphen_outside = |label: &str| label.starts_with('-') || label.ends_with('-');
    if domain.bytes().any(|b| !b.is_ascii_alphanumeric() && b != b'-' && b != b'.')
        || domain.split('.').any(hyphen_outside)
    {
        return Err(illegal("Domain contains illegal character"));
    }
    Ok(())
}

fn check_dots(text: &str, what: &str) -> Result<(), Refusal> {
    let rule = if text.starts_with('.') {
        "starts with dot"
    } else if text.ends_with('.') {
        "ends with dot"
    } else if text.contains("..") {
        "contains dot-dot"
    } else {
        return Ok(());
    };
    Err(Refusal::bad_request(format!("{what} {rule}")))
}

fn illegal(message: &'static str) -> Refusal {
    Refusal::bad_request(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_meaning_are_known_with_their_labels() {
        let fate = |text| Address::parse(text).unwrap().fate();
        assert_eq!(fate("bounce+a+b@simulator.amazonses.com"), RecipientFate::Bounced);
        assert_eq!(fate("X <Complaint@Simulator.AmazonSES.com>"), RecipientFate::Complained);
        assert_eq!(fate("ooto@simulator.amazonses.com"), RecipientFate::OutOfOffice);
        assert_eq!(fate("suppressionlist@simulator.amazonses.com"), RecipientFate::Suppressed);
        assert_eq!(fate("success+1@simulator.amazonses.com"), RecipientFate::Delivered);
        assert_eq!(fate("bounce@example.com"), RecipientFate::Delivered);
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in [
            "",
            "a",
            "@x.org",
            "a@",
            "a@x..org",
            "a@.x.org",
            "a@x.org.",
            ".a@x.org",
            "a..b@x.org",
            "a b@x.org",
            "a@x_y.org",
            "a@-x.org",
            "a@x.org, b@x.org",
            "a@x.org, B <b@x.org>",
            "a@[127.0.0.1]",
            "jos\u{e9}@x.org",
            "Jos\u{e9} <j@x.org>",
            "a@ex\u{e4}mple.org",
            "a\r\n@x.org",
            "A <a@x.org> x",
            "a@b@x.org",
        ] {
            let refusal = Address::parse(text).expect_err(text);
            assert_eq!(refusal.name, "BadRequestException", "{text}");
        }
    }

    #[test]
    fn both_forms_are_read() {
        for text in ["a@x.org", "<a@x.org>", "A B <a@x.org>", "\"B, A\" <a@x.org>"] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.local, address.domain), ("a", "x.org"), "{text}");
        }
        assert_eq!(Address::parse("\"a b\"@x.org").unwrap().local, "\"a b\"");
    }
}
