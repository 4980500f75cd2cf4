//! Shared by the integration tests: sites that run the real binary, and services and stores in the
//! test's own process.
//!
//! Every test binary includes it by path, and uses a part of it. Must not know what is tested.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use pillarbox_simulator::{Options, Simulator};
use tokio::net::TcpListener;

mod database;
mod dev;
mod history;
mod local;
mod manager;
mod process;
mod proxy;
mod receiver;
mod server;
mod shown;
mod site;
mod smtp;

pub(crate) use database::is_on_postgres;
pub(crate) use dev::DevProcess;
pub(crate) use history::{History, ORGANISATION};
pub(crate) use local::{
    LocalService, NOON, accept, add_api_key, add_organisation, at_once, get, local_config,
    open_store, send_with_key, ses_client, start_service, store_api_key,
};
pub(crate) use manager::Manager;
pub(crate) use process::{Finished, Process, pillarbox};
pub(crate) use proxy::Proxy;
pub(crate) use receiver::{Received, Receiver, Reply};
pub(crate) use server::{Server, answer, message, message_with, refusal};
pub(crate) use shown::{look, metric, status};
pub(crate) use site::{AWS_ACCESS_KEY, AWS_SECRET, Site};
pub(crate) use smtp::{SmtpClient, accepted_id, auth_plain, codes};

/// Time that anything may take that happens by itself.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A number of the environment, such as the rounds of a run or the seed of its choices.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Starts a simulator on a free port.
pub(crate) async fn start_simulator(options: Options) -> Simulator {
    install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Simulator::start(listener, options).await
}

/// A port at which nothing listens, another each time. It is below those that the kernel gives to
/// connections and to listeners on port 0, so that it stays free until it is used.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An HTTP client that ignores the proxies of the machine.
pub(crate) fn http_client() -> reqwest::Client {
    install_crypto();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// Installs a provider of cryptography: reqwest has none, and asks for one for plain HTTP as well.
pub(crate) fn install_crypto() {
    // An error says that there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
