//! Email addresses: SES's rules for them, and the fate of mail to them.
//!
//! Independent of the service's own parser, so that tests find addresses that the service takes and
//! SES would refuse. Must not know messages or HTTP.

use serde::Serialize;

use super::protocol::ErrorResponse;

/// The domain of SES's mailbox simulator.
const MAILBOX_SIMULATOR_DOMAIN: &str = "simulator.amazonses.com";
/// RFC 5321 section 4.5.3.1.
const MAX_LOCAL_PART_LENGTH: usize = 64;
const MAX_DOMAIN_LENGTH: usize = 255;
const MAX_LABEL_LENGTH: usize = 63;

/// The report that SES would give for one recipient. The address alone decides: mail to an address
/// that is not of SES's mailbox simulator is delivered.
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

/// The two parts of a checked address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) local: &'a str,
    pub(super) domain: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `address` or `Display Name <address>`.
    pub(super) fn parse(text: &'a str) -> Result<Self, ErrorResponse> {
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

    /// The fate of mail to this address.
    pub(super) fn fate(self) -> RecipientFate {
        if !self.domain.eq_ignore_ascii_case(MAILBOX_SIMULATOR_DOMAIN) {
            return RecipientFate::Delivered;
        }
        let mailbox = self.local.split('+').next().unwrap_or_default();
        match mailbox.to_ascii_lowercase().as_str() {
            "bounce" => RecipientFate::Bounced,
            "complaint" => RecipientFate::Complained,
            "ooto" => RecipientFate::OutOfOffice,
            "suppressionlist" => RecipientFate::Suppressed,
            _ => RecipientFate::Delivered,
        }
    }
}

fn bare_address(text: &str) -> Result<&str, ErrorResponse> {
    let Some(inner) = text.strip_suffix('>') else { return Ok(text) };
    let (display_name, address) = inner.rsplit_once('<').ok_or(illegal("Illegal address"))?;
    if !is_phrase(display_name.trim()) {
        return Err(illegal("Illegal address"));
    }
    Ok(address.trim())
}

/// Returns true if a display name has no character with a meaning outside its quoted strings.
fn is_phrase(display_name: &str) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_plain = display_name.chars().all(|c| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => return is_quoted || !['<', '>', '@', ',', ';'].contains(&c),
        }
        true
    });
    is_plain && !is_quoted
}

fn check_local_part(local: &str) -> Result<(), ErrorResponse> {
    if local.is_empty() {
        return Err(illegal("User name is missing"));
    }
    if local.len() > MAX_LOCAL_PART_LENGTH {
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

/// Checks a domain name, or a domain identity.
pub(super) fn check_domain(domain: &str) -> Result<(), ErrorResponse> {
    if domain.is_empty() {
        return Err(illegal("Missing final '@domain'"));
    }
    check_dots(domain, "Domain")?;
    if domain.len() > MAX_DOMAIN_LENGTH
        || domain.split('.').any(|label| label.len() > MAX_LABEL_LENGTH)
    {
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

fn check_dots(text: &str, what: &str) -> Result<(), ErrorResponse> {
    let rule = if text.starts_with('.') {
        "starts with dot"
    } else if text.ends_with('.') {
        "ends with dot"
    } else if text.contains("..") {
        "contains dot-dot"
    } else {
        return Ok(());
    };
    Err(ErrorResponse::bad_request(format!("{what} {rule}")))
}

fn illegal(message: &'static str) -> ErrorResponse {
    ErrorResponse::bad_request(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailbox_simulator_addresses_are_known_with_their_labels() {
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
            let error = Address::parse(text).expect_err(text);
            assert_eq!(error.name, "BadRequestException", "{text}");
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
