//! The suppression list of the SES account, which SES keeps beside ours.

use std::fmt::Write;

use crate::domain::suppression::SuppressedAddress;
use crate::ses::SesClient;
use crate::ses::call::CallError;

/// What asking for an address to be taken from the list came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is on the list no more.
    Removed,
    /// It was not on the list.
    NotThere,
}

impl SesClient {
    /// Takes an address from the account's list (SES v2 API reference,
    /// `DeleteSuppressedDestination`).
    pub async fn unsuppress(&self, address: &SuppressedAddress) -> Result<Removal, CallError> {
        let path = format!("/v2/email/suppression/addresses/{}", in_path(&address.to_string()));
        match self.delete(&path).await {
            Ok(()) => Ok(Removal::Removed),
            Err(CallError::Refused { name: Some(name), .. }) if name == "NotFoundException" => {
                Ok(Removal::NotThere)
            }
            Err(error) => Err(error),
        }
    }
}

/// The text as one segment of a path: all but RFC 3986's unreserved characters encoded, as AWS's
/// own clients do it.
fn in_path(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("text takes everything");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::stub::{Answer, Server, client};

    #[tokio::test]
    async fn an_address_is_taken_from_the_list_and_one_that_is_not_there_is_no_error() {
        let address = SuppressedAddress::parse("Bob+a/b@Example.org").unwrap();
        for (answer, removal) in [
            (Answer::json(200, "{}"), Ok(Removal::Removed)),
            (Answer::json(200, ""), Ok(Removal::Removed)),
            (Answer::error(404, "NotFoundException", "Not there."), Ok(Removal::NotThere)),
        ] {
            let server = Server::start(answer).await;
            assert_eq!(client(&server.url()).unsuppress(&address).await, removal);
            let head = server.requests().remove(0).head;
            let path = "/v2/email/suppression/addresses/bob%2Ba%2Fb%40example.org";
            assert!(head.starts_with(&format!("DELETE {path} HTTP/1.1\r\n")), "{head}");
        }
        let server = Server::start(Answer::json(404, "no such page")).await;
        let missing = client(&server.url()).unsuppress(&address).await;
        assert_eq!(missing, Err(CallError::NotSupported { status: 404 }));
    }
}
