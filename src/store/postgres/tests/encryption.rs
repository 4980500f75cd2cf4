//! TLS to the server.

use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::postgres::connection::Connector;
use crate::postgres::tests::nodes::Database;

fn server_authority() -> RootCertStore {
    let path = std::env::var("TEST_POSTGRES_CA").expect("run this with tests/with-postgres.sh");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    roots
}

#[tokio::test]
async fn a_connection_is_encrypted_and_the_certificate_is_checked() {
    const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let mut server = Database::new().await.server;
    let is_encrypted = async |server: &_| {
        let connection = Connector::new(server).connect().await?;
        Ok::<bool, crate::postgres::error::QueryError>(
            connection.query_one(ENCRYPTED, &[]).await?.get(0),
        )
    };
    assert!(!is_encrypted(&server).await.unwrap());
    server.authorities = Some(server_authority());
    assert!(is_encrypted(&server).await.unwrap());
    // Somebody else's authority.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(other.cert.der().clone()).unwrap();
    server.authorities = Some(roots);
    let refused = tokio::time::timeout(Duration::from_secs(10), is_encrypted(&server)).await;
    let error = refused.unwrap().unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
