//! A signing certificate: read, checked, and used to check signatures.
//!
//! SNS serves the certificate alone, without its issuer's (seen in the test data of AWS's SDK for
//! Java, whose validator takes nothing else), so its chain cannot be followed to a root. What
//! vouches for it then is what AWS's own validators rely on: that it came over TLS, checked
//! against the roots, from SNS's own host. Where issuers do come with it, they have to lead to a
//! root as well. Dates, usage and names are checked in every case.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::ring::RSA_PKCS1_2048_8192_SHA256;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, Error, KeyUsage};

use crate::domain::time::Timestamp;

/// The most certificates in one file.
const MAX_CHAIN: usize = 8;

/// A certificate, with its issuers' where they came with it.
#[derive(Debug)]
pub(super) struct Certificate {
    leaf: CertificateDer<'static>,
    issuers: Vec<CertificateDer<'static>>,
}

/// Why a certificate is none of SNS's, or not now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The file is no certificate.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It was good once.
    #[error("the certificate has expired")]
    Expired,
    /// It will be.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// It names somebody else.
    #[error("the certificate is not for SNS")]
    OtherName,
    /// Its issuers do not lead to a root that is trusted.
    #[error("the certificate's issuer is not trusted")]
    UntrustedIssuer,
    /// Anything else.
    #[error("the certificate cannot be used: {0}")]
    Unusable(String),
}

/// The signature is none of the certificate's over this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrongSignature;

impl Certificate {
    /// Reads a PEM file: the certificate, then its issuers'.
    pub(super) fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(pem).take(MAX_CHAIN + 1).collect();
        let mut chain = chain.map_err(|_| CertificateError::Unreadable)?.into_iter();
        let leaf = chain.next().ok_or(CertificateError::Unreadable)?;
        let issuers: Vec<_> = chain.collect();
        EndEntityCert::try_from(&leaf).map_err(|_| CertificateError::Unreadable)?;
        if issuers.len() >= MAX_CHAIN {
            return Err(CertificateError::Unreadable);
        }
        Ok(Self { leaf, issuers })
    }

    /// Checks that it is a certificate of SNS's that is good now.
    pub(super) fn check(
        &self,
        names: &[ServerName<'_>],
        roots: &[TrustAnchor<'_>],
        now: Timestamp,
    ) -> Result<(), CertificateError> {
        let leaf = self.end_entity();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_millis(now.unix_millis()));
        let usage = KeyUsage::server_auth();
        let checked = leaf.verify_for_usage(
            ALL_VERIFICATION_ALGS,
            roots,
            &self.issuers,
            now,
            usage,
            None,
            None,
        );
        match checked {
            Ok(_) => {}
            // The certificate's own dates and usage are checked before its issuer is looked for.
            // One that names itself as its issuer was issued by no authority.
            Err(Error::UnknownIssuer)
                if self.issuers.is_empty() && leaf.issuer() != leaf.subject() => {}
            Err(error) => return Err(error.into()),
        }
        if names.iter().any(|name| leaf.verify_is_valid_for_subject_name(name).is_ok()) {
            Ok(())
        } else {
            Err(CertificateError::OtherName)
        }
    }

    /// Checks a signature of version 2: RSA with PKCS #1 v1.5 padding over SHA-256.
    pub(super) fn verify(&self, text: &[u8], signature: &[u8]) -> Result<(), WrongSignature> {
        self.end_entity()
            .verify_signature(RSA_PKCS1_2048_8192_SHA256, text, signature)
            .map_err(|_| WrongSignature)
    }

    fn end_entity(&self) -> EndEntityCert<'_> {
        EndEntityCert::try_from(&self.leaf).expect("it was read before")
    }
}

impl From<Error> for CertificateError {
    fn from(error: Error) -> Self {
        match error {
            Error::CertExpired { .. } => Self::Expired,
            Error::CertNotValidYet { .. } => Self::NotYetValid,
            Error::UnknownIssuer
            | Error::InvalidSignatureForPublicKey
            | Error::CaUsedAsEndEntity => Self::UntrustedIssuer,
            error => Self::Unusable(error.to_string()),
        }
    }
}
