//! Reason why the service cannot start.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use pillarbox_admin::socket::BindError;
use pillarbox_http::tls::TlsError;
use pillarbox_ses::SesError;
use pillarbox_ses::sqs::NotAQueue;
use pillarbox_store::{ConnectError, OpenError};
use pillarbox_webhooks::BadEndpoint;

/// A listener, by the setting that gives its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerName {
    /// The clients' listener of the service.
    Clients,
    /// The service's listener of SMTP sessions that begin in plain text.
    Smtp,
    /// The service's listener of SMTP sessions that begin with TLS.
    SmtpTls,
    /// The service's listener of the API in Resend's shape.
    Resend,
    /// The operators' listener of the service.
    Operators,
    /// The simulator that runs alone.
    Simulator,
    /// The simulator within `dev`, on a free port.
    SimulatorOfDev,
}

impl ListenerName {
    /// Returns how to give it another address.
    const fn setting(self) -> &'static str {
        match self {
            Self::Clients => {
                "give another address in `listen`, or with --listen for `pillarbox dev`; port 0 \
                 takes a free port"
            }
            Self::Smtp => {
                "give another address in `smtp.listen`, or with --smtp-listen for `pillarbox dev`; \
                 port 0 takes a free port"
            }
            Self::SmtpTls => "give another address in `smtp.tls_listen`; port 0 takes a free port",
            Self::Resend => {
                "give another address in `resend_api.listen`, or with --resend-listen for \
                 `pillarbox dev`; port 0 takes a free port"
            }
            Self::Operators => {
                "give another address in `operator_listen`, or with --operator-listen for \
                 `pillarbox dev`; port 0 takes a free port"
            }
            Self::Simulator => "give another address with --listen; port 0 takes a free port",
            Self::SimulatorOfDev => {
                "the simulator needs a free port on 127.0.0.1; end programs that use many ports"
            }
        }
    }

    /// Returns the option of `pillarbox dev` that gives it another address, if there is one.
    const fn option_of_dev(self) -> Option<&'static str> {
        match self {
            Self::Clients => Some("--listen"),
            Self::Operators => Some("--operator-listen"),
            Self::Smtp => Some("--smtp-listen"),
            Self::Resend => Some("--resend-listen"),
            Self::SmtpTls | Self::Simulator | Self::SimulatorOfDev => None,
        }
    }
}

/// Addresses that other processes listen on, and a command line of `pillarbox dev` without them.
#[derive(Debug)]
pub struct TakenAddresses(pub Vec<(ListenerName, SocketAddr)>);

impl fmt::Display for TakenAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.0.iter().map(|(_, address)| address.to_string()).collect();
        let verb = if addresses.len() == 1 { "is" } else { "are" };
        write!(
            f,
            "{} {verb} in use, perhaps by another `pillarbox dev`. Stop that, or choose free ports: \
             pillarbox dev",
            addresses.join(" and ")
        )?;
        let options = self.0.iter().filter_map(|(listener, _)| listener.option_of_dev());
        options.into_iter().try_for_each(|option| write!(f, " {option} localhost:0"))
    }
}

/// Reason why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The store cannot be opened.
    #[error("cannot open the store in {}: {source}", directory.display())]
    Store {
        /// Path of the data directory.
        directory: PathBuf,
        /// Error of the store.
        source: OpenError,
    },
    /// The database cannot be joined.
    #[error("cannot join the nodes on the database: {0}")]
    Connect(#[from] ConnectError),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Another service runs in the data directory of `pillarbox dev`.
    #[error(
        "another service is running in {}; stop it, or choose another directory with --data-dir",
        data_dir.display()
    )]
    DirectoryInUse {
        /// Path of the data directory.
        data_dir: PathBuf,
    },
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; {}", listener.setting()
    )]
    Listen {
        /// Listener that needs the address.
        listener: ListenerName,
        /// Address from the configuration.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Other processes listen on addresses that `dev` needs.
    #[error("{0}")]
    Taken(TakenAddresses),
    /// API keys would be sent unencrypted.
    #[error(
        "SMTP cannot be served on {address} without a certificate, because API keys would be sent \
         unencrypted; give tls.certificate and tls.key"
    )]
    SmtpInClear {
        /// Address from the configuration.
        address: SocketAddr,
    },
    /// The API in Resend's shape is to be served in clear on an address that is not of this machine
    /// alone.
    #[error(
        "the Resend-compatible API cannot be served on {address} without a certificate, because \
         API keys would be sent unencrypted; give tls.certificate and tls.key"
    )]
    ResendInClear {
        /// Address from the configuration.
        address: SocketAddr,
    },
    /// The administration socket cannot be made.
    #[error("cannot make the administration socket: {0}")]
    Socket(#[from] BindError),
    /// The SES client cannot be built.
    #[error(transparent)]
    Ses(#[from] SesError),
    /// The queue of events cannot be polled.
    #[error("ses.events.queue_url: {0}")]
    Queue(#[from] NotAQueue),
    /// Alerts cannot be posted.
    #[error("alerts.url: {0}")]
    Alerts(#[source] BadEndpoint),
    /// The operating system gives no random numbers.
    #[error("the operating system returned no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Something else of the operating system.
    #[error("{what}: {source}")]
    System {
        /// Failed operation, as a sentence's part.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}
