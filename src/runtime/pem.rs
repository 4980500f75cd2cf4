//! PEM files (RFC 7468) of certificates and private keys, and the reasons why one cannot be used.
//!
//! Files of other programs are read if they have one meaning. If not, the reason says what the file
//! is and how to make the right one from it. The content of a key is not shown.

use std::borrow::Cow;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Mark that some editors put before UTF-8. Joined files have it in their middle, too.
const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The same for UTF-16, in either order of bytes.
const UTF_16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
/// Tag that DER begins with, in a certificate, a key and PKCS #12.
const SEQUENCE: u8 = 0x30;
/// Object identifier of the curve P-521, 1.3.132.0.35, as DER.
const P_521: &[u8] = b"\x06\x05\x2b\x81\x04\x00\x23";

const UTF_16: &str = "it is text in UTF-16; save it in UTF-8";

/// Returns the content of a file without byte order marks.
pub fn without_marks(file: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memmem::find(file, UTF_8_MARK) else { return Cow::Borrowed(file) };
    let (mut kept, mut rest) = (file[..first].to_vec(), &file[first..]);
    while let Some(at) = memchr::memmem::find(rest, UTF_8_MARK) {
        kept.extend_from_slice(&rest[..at]);
        rest = &rest[at + UTF_8_MARK.len()..];
    }
    kept.extend_from_slice(rest);
    Cow::Owned(kept)
}

/// Reads the certificates of a file. Fails if there is none.
pub fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = text(file, "x509")?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&file).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) if has(&file, b"PRIVATE KEY-----") => {
            Err("there is a private key in it and no certificate; are the two files swapped?"
                .to_owned())
        }
        Ok(_) => Err("it contains no certificate in PEM form".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads the private key of a file.
pub fn private_key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let file = text(file, "pkey")?;
    if has(&file, b"BEGIN ENCRYPTED PRIVATE KEY") || has(&file, b"Proc-Type: 4,ENCRYPTED") {
        return Err(
            "it is encrypted with a password; write it without one: openssl pkey -in FILE -out NEW"
                .to_owned(),
        );
    }
    // The error of its text is not shown: the text is the key.
    PrivateKeyDer::from_pem_slice(&file).map_err(|_| {
        let reason = if has(&file, b"BEGIN CERTIFICATE") && !has(&file, b"PRIVATE KEY-----") {
            "there is a certificate in it and no private key; are the two files swapped?"
        } else {
            "it contains no unencrypted private key in PEM form"
        };
        reason.to_owned()
    })
}

/// Reason why a well-formed key cannot be used for TLS.
pub fn unsupported_key(key: &PrivateKeyDer<'_>) -> String {
    const TAKEN: &str = "use ECDSA on P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits";
    if has(key.secret_der(), P_521) {
        format!("it is an ECDSA key on the curve P-521, which is not supported; {TAKEN}")
    } else {
        format!("its kind or size is not supported; {TAKEN}")
    }
}

/// The text of a PEM file. `kind` is the command of OpenSSL that makes one of DER.
fn text<'f>(file: &'f [u8], kind: &str) -> Result<Cow<'f, [u8]>, String> {
    if UTF_16_MARKS.iter().any(|mark| file.starts_with(mark)) {
        return Err(UTF_16.to_owned());
    }
    if file.first() == Some(&SEQUENCE) && !has(file, b"-----BEGIN") {
        return Err(format!(
            "it is binary (DER or PKCS #12) and not PEM; for DER: openssl {kind} -inform DER -in FILE \
             -out NEW"
        ));
    }
    Ok(without_marks(file))
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_left_out_wherever_they_are() {
        assert_eq!(&*without_marks(b"abc"), b"abc");
        assert_eq!(
            &*without_marks(b"\xef\xbb\xbfa\xef\xbb\xbf\xef\xbb\xbfb\xef\xbb"),
            b"ab\xef\xbb"
        );
    }

    #[test]
    fn what_a_file_is_instead_is_told() {
        let mark_16 = b"\xff\xfe-\0-\0";
        for (file, words) in [
            (&b""[..], "it contains no certificate"),
            (b"\x30\x82\x01\x00", "openssl x509"),
            (mark_16, "UTF-16"),
            (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "swapped"),
        ] {
            let reason = certificates(file).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
        for (file, words) in [
            (&b""[..], "it contains no unencrypted private key"),
            (b"\x30\x82\x01\x00", "openssl pkey"),
            (mark_16, "UTF-16"),
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "swapped"),
            (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "password"),
            (b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "password"),
        ] {
            let reason = private_key(file).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
    }
}
