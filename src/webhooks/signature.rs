//! Signatures of deliveries by Standard Webhooks 1.0.0, "Signature scheme".

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use pillarbox_domain::webhook::SigningSecret;

/// Version of the scheme with a shared secret.
const VERSION: &str = "v1";

/// Returns the value of `webhook-signature`: one signature for each secret, separated by spaces.
/// `timestamp` is in seconds since the Unix epoch.
pub(super) fn signatures<'a>(
    secrets: impl Iterator<Item = &'a SigningSecret>,
    id: &str,
    timestamp: u64,
    body: &[u8],
) -> String {
    let each: Vec<_> = secrets.map(|secret| signature(secret, id, timestamp, body)).collect();
    each.join(" ")
}

fn signature(secret: &SigningSecret, id: &str, timestamp: u64, body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret.bytes());
    let mut mac = mac.expect("HMAC takes keys of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("{VERSION},{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the reference libraries' own tests.
    const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn secret() -> SigningSecret {
        SigningSecret::from_bytes(&STANDARD.decode(SECRET).unwrap())
    }

    #[test]
    fn a_signature_is_that_of_the_reference_libraries() {
        let secret = secret();
        assert_eq!(signatures(std::iter::once(&secret), ID, TIMESTAMP, BODY), SIGNATURE);
    }

    #[test]
    fn each_secret_signs() {
        let secrets = [SigningSecret::generate().unwrap(), secret()];
        let value = signatures(secrets.iter(), ID, TIMESTAMP, BODY);
        let (first, second) = value.split_once(' ').unwrap();
        assert!(first.starts_with("v1,") && first != second);
        assert_eq!(second, SIGNATURE);
    }
}
