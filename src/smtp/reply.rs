//! Replies of SMTP (RFC 5321, section 4.2) with enhanced status codes (RFC 2034, RFC 3463).

use std::borrow::Cow;

/// A reply of one line, as it is written, without its CRLF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply(Cow<'static, str>);

impl Reply {
    pub(super) const GREETING: Self = Self::fixed("220 pillarbox ESMTP");
    pub(super) const START_TLS: Self = Self::fixed("220 2.0.0 start TLS");
    pub(super) const BYE: Self = Self::fixed("221 2.0.0 bye");
    pub(super) const AUTHENTICATED: Self = Self::fixed("235 2.7.0 authenticated");
    pub(super) const HELLO: Self = Self::fixed("250 pillarbox");
    pub(super) const OK: Self = Self::fixed("250 2.0.0 ok");
    pub(super) const SENDER_OK: Self = Self::fixed("250 2.1.0 ok");
    pub(super) const RECIPIENT_OK: Self = Self::fixed("250 2.1.5 ok");
    pub(super) const NOT_VERIFIED_HERE: Self =
        Self::fixed("252 2.1.5 addresses are not verified; send the message");
    pub(super) const GO_ON: Self = Self::fixed("334 ");
    /// `Username:` in base64, which clients wait for.
    pub(super) const ASK_USER: Self = Self::fixed("334 VXNlcm5hbWU6");
    /// `Password:` in base64.
    pub(super) const ASK_PASSWORD: Self = Self::fixed("334 UGFzc3dvcmQ6");
    pub(super) const SEND_DATA: Self =
        Self::fixed("354 end the message with a line that has only a dot");
    pub(super) const TIMED_OUT: Self = Self::fixed("421 4.4.2 the client took too long");
    pub(super) const STOPPING: Self =
        Self::fixed("421 4.3.2 the service is stopping; try again later");
    pub(super) const TOO_MANY_CONNECTIONS: Self =
        Self::fixed("421 4.3.2 too many connections; try again later");
    pub(super) const TOO_MANY_ERRORS: Self = Self::fixed("421 4.7.0 too many errors");
    pub(super) const STORAGE_UNAVAILABLE: Self = Self::fixed(
        "451 4.3.0 the service cannot reach its storage for now: nothing was stored; try again later",
    );
    pub(super) const OUTCOME_OPEN: Self = Self::fixed(
        "451 4.3.0 the storage did not answer in time: the message may still go out; repeat it \
         unchanged",
    );
    pub(super) const QUEUE_FULL: Self = Self::fixed(
        "451 4.3.1 the queue, or your organisation's share of it, is full; try again later",
    );
    pub(super) const PAUSED: Self = Self::fixed(
        "451 4.3.2 the operator has paused your organisation: nothing was stored; try again later",
    );
    pub(super) const TOO_MANY_RECIPIENTS: Self = Self::fixed(
        "452 4.5.3 a message has at most 50 recipients; send a second one to the others",
    );
    pub(super) const UNKNOWN: Self = Self::fixed("500 5.5.1 there is no such command");
    pub(super) const ARGUMENTS: Self =
        Self::fixed("501 5.5.4 the arguments of the command are malformed");
    pub(super) const CANCELLED: Self = Self::fixed("501 5.7.0 the authentication was cancelled");
    pub(super) const NOT_IMPLEMENTED: Self =
        Self::fixed("502 5.5.1 this command is not implemented");
    pub(super) const SEQUENCE: Self = Self::fixed("503 5.5.1 this command is out of order");
    pub(super) const PIPELINED: Self =
        Self::fixed("503 5.5.1 wait for the answer to AUTH before the next command");
    pub(super) const MECHANISM: Self = Self::fixed("504 5.5.4 use AUTH PLAIN or AUTH LOGIN");
    pub(super) const NOT_A_LINE: Self = Self::fixed(
        "521 5.5.2 each line must end in CRLF, have at most 998 octets, and contain no other CR, \
         LF or NUL",
    );
    pub(super) const START_TLS_FIRST: Self = Self::fixed("530 5.7.0 use STARTTLS first");
    pub(super) const AUTHENTICATE_FIRST: Self =
        Self::fixed("530 5.7.0 authenticate first: the password is an API key");
    pub(super) const KEY_ENDED: Self =
        Self::fixed("530 5.7.0 the API key is not valid any more: nothing was stored");
    pub(super) const MAY_NOT_SEND: Self =
        Self::fixed("550 5.7.1 this API key does not have the send scope");
    pub(super) const BAD_KEY: Self = Self::fixed("535 5.7.8 the password must be a valid API key");
    pub(super) const ENCRYPT_FIRST: Self = Self::fixed("538 5.7.11 use STARTTLS before AUTH");
    pub(super) const SUPPRESSED: Self = Self::fixed(
        "550 5.1.1 this recipient is suppressed, because of a bounce or a complaint, or by the operator",
    );
    pub(super) const TOO_LARGE: Self = Self::fixed("552 5.3.4 the message is too large");
    pub(super) const NO_RECIPIENTS: Self = Self::fixed("554 5.5.1 no recipient was accepted");
    pub(super) const PARAMETER: Self =
        Self::fixed("555 5.5.4 a parameter of this command is not supported");

    const fn fixed(line: &'static str) -> Self {
        Self(Cow::Borrowed(line))
    }

    /// A reply made of its codes and a text that may have a client's own words in it.
    pub(super) fn new(codes: &str, text: &str) -> Self {
        // One line, with any text (RFC 5321, section 4.5.3.1.5: 512 octets with its CRLF).
        const MAX_CHARS: usize = 400;
        let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let text: String = text.chars().take(MAX_CHARS).map(printable).collect();
        Self(format!("{codes} {text}").into())
    }

    /// Returns the line, without its CRLF.
    pub(super) fn line(&self) -> &str {
        &self.0
    }

    /// The codes that it begins with, such as `550 5.7.1`; of a reply without an enhanced code, the
    /// code alone.
    pub(super) fn codes(&self) -> &str {
        let is_code = |part: &&str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        let codes = self.0.split(' ').take(2).take_while(is_code);
        let len = codes.map(|part| part.len() + 1).sum::<usize>().saturating_sub(1);
        &self.0[..len]
    }

    /// Returns true if the client does not keep to the protocol, or has no right.
    pub(super) fn is_clients_error(&self) -> bool {
        self.0.starts_with("50") || self.0.starts_with("53") || self.0.starts_with("555")
    }

    /// Returns true if it says that the command failed.
    pub(super) fn is_refusal(&self) -> bool {
        self.0.starts_with(['4', '5'])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_one_line_of_ascii_whatever_is_in_it() {
        let reply = Reply::new("550 5.6.0", &format!("a\r\nQUIT\u{e9}{}", "x".repeat(1_000)));
        assert!(reply.line().starts_with("550 5.6.0 a??QUIT?xxx"), "{reply:?}");
        assert!(reply.line().len() < 510);
        assert_eq!(reply.codes(), "550 5.6.0");
        assert_eq!(Reply::GREETING.codes(), "220");
        assert_eq!(Reply::GO_ON.codes(), "334");
        assert!(reply.is_refusal() && !Reply::SEND_DATA.is_refusal());
        assert_eq!(Reply::new("550 5.6.0", "a b").line(), "550 5.6.0 a b");
    }

    #[test]
    fn an_error_is_the_clients_if_it_breaks_the_protocol_or_has_no_right() {
        for reply in [Reply::UNKNOWN, Reply::SEQUENCE, Reply::BAD_KEY, Reply::PARAMETER] {
            assert!(reply.is_clients_error(), "{reply:?}");
        }
        for reply in [Reply::OK, Reply::QUEUE_FULL, Reply::NOT_A_LINE, Reply::SUPPRESSED] {
            assert!(!reply.is_clients_error(), "{reply:?}");
        }
    }
}
