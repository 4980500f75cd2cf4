//! Listening sockets that a supervisor has handed over, by systemd's protocol (`LISTEN_FDS` and
//! `LISTEN_FDNAMES`, see `sd_listen_fds(3)`).

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;

use crate::service::ServiceError;

/// Name of the socket where SMTP sessions begin in plain text (`FileDescriptorName=`).
const SMTP: &str = "smtp";
/// Name of the socket where SMTP sessions begin with TLS.
const SMTPS: &str = "smtps";

/// The sockets, as far as they were handed over.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Where clients send and read: a socket with any other name.
    pub clients: Option<TcpListener>,
    /// Where SMTP sessions begin in plain text.
    pub smtp: Option<TcpListener>,
    /// Where SMTP sessions begin with TLS.
    pub smtp_tls: Option<TcpListener>,
    /// Memory with the bodies of pending messages.
    pub arena: Option<OwnedFd>,
}

impl Inherited {
    /// Takes the sockets over. To be called once, before there is any other thread.
    pub fn from_environment() -> Result<Self, ServiceError> {
        let what = "the socket handed over cannot be listened on";
        let failed = |source| ServiceError::System { what, source };
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut handed_over = ListenFd::from_env();
        let slots = slots(&names, handed_over.len()).map_err(failed)?;
        let mut inherited = Self::default();
        for (index, slot) in slots.into_iter().enumerate() {
            let listener = handed_over.take_tcp_listener(index).map_err(failed)?;
            *match slot {
                Slot::Clients => &mut inherited.clients,
                Slot::Smtp => &mut inherited.smtp,
                Slot::SmtpTls => &mut inherited.smtp_tls,
            } = listener;
        }
        Ok(inherited)
    }
}

/// Use of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Clients,
    Smtp,
    SmtpTls,
}

/// The use of each of `count` sockets with these names, which colons separate.
fn slots(names: &str, count: usize) -> io::Result<Vec<Slot>> {
    let mut names = names.split(':');
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        let (slot, unit) = match names.next() {
            Some(SMTP) => (Slot::Smtp, "pillarbox-smtp.socket"),
            Some(SMTPS) => (Slot::SmtpTls, "pillarbox-smtps.socket"),
            Some(_) | None => (Slot::Clients, "pillarbox.socket"),
        };
        if slots.contains(&slot) {
            // Nobody would ever answer at the others.
            return Err(io::Error::other(format!(
                "there are {count}, and one of a kind is served; give {unit} a single ListenStream="
            )));
        }
        slots.push(slot);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_by_its_name() {
        use Slot::{Clients, Smtp, SmtpTls};
        for (names, count, expected) in [
            ("", 0, &[][..]),
            ("", 1, &[Clients]),
            ("unknown", 1, &[Clients]),
            ("smtp:clients:smtps", 3, &[Smtp, Clients, SmtpTls]),
            ("smtp", 2, &[Smtp, Clients]),
        ] {
            assert_eq!(slots(names, count).unwrap(), expected, "{names:?}");
        }
        for (names, unit) in [("", "pillarbox.socket"), ("smtp:smtp", "pillarbox-smtp.socket")] {
            let error = slots(names, 2).unwrap_err().to_string();
            assert!(error.contains(&format!("{unit} a single ListenStream=")), "{error}");
        }
    }
}
