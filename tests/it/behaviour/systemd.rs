//! Reports of the service to its supervisor, over a real notification socket, and the sockets that
//! it is handed.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use pillarbox_simulator::{Fault, Faults};

use crate::kit::{PATIENCE, Site, message};

/// A supervisor's end: what `NOTIFY_SOCKET` names.
struct Notified {
    socket: UnixDatagram,
    path: String,
}

impl Notified {
    fn at(site: &Site) -> Self {
        let path = site.directory().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path: path.to_str().unwrap().to_owned() }
    }

    fn next(&self) -> String {
        self.receive().expect("the service says something")
    }

    /// Receives the next message, but for the one that says how long a start may take: a node that
    /// others know by its name may have to wait for its end.
    fn receive(&self) -> io::Result<String> {
        let mut datagram = [0; 4096];
        loop {
            let length = self.socket.recv(&mut datagram)?;
            let message = String::from_utf8(datagram[..length].to_vec()).unwrap();
            if !message.starts_with("EXTEND_TIMEOUT_USEC=") {
                return Ok(message);
            }
        }
    }

    /// Waits for a message with a line that starts like this; gives all of it.
    fn wait_for(&self, start: &str) -> String {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let message = self.next();
            if message.lines().any(|line| line.starts_with(start)) {
                return message;
            }
        }
        panic!("no {start}");
    }
}

#[test]
fn the_unit_starts_after_the_clock_is_synchronised() {
    let unit = include_str!("../../../systemd/pillarbox.service");
    let after = unit.lines().filter_map(|line| line.strip_prefix("After="));
    let mut after = after.flat_map(str::split_whitespace);
    assert!(after.any(|name| name == "time-sync.target"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_hears_of_the_whole_life() {
    let site = Site::new().await;
    let notified = Notified::at(&site);
    let variables = [("NOTIFY_SOCKET", notified.path.as_str()), ("WATCHDOG_USEC", "2000000")];
    let server = site.start_with(&variables);
    // The bodies outlive the process before the first one comes.
    assert_eq!(notified.next(), "FDSTORE=1\nFDNAME=arena\n");
    // Said when requests are answered.
    assert_eq!(notified.wait_for("READY=1"), "READY=1\n");
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(notified.wait_for("STATUS=pending 0, sent 1/min"), "STATUS=pending 0, sent 1/min\n");
    assert_eq!(notified.wait_for("WATCHDOG="), "WATCHDOG=1\n");
    assert_eq!(notified.wait_for("WATCHDOG="), "WATCHDOG=1\n");

    server.signal("HUP");
    let reload = notified.wait_for("RELOADING=1");
    let since = reload.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(since.parse::<u64>().unwrap() > 0);
    notified.wait_for("READY=1");

    server.terminate().await;
    let stopping = notified.wait_for("STOPPING=1");
    // 60 s to drain, and some for everything else.
    assert!(stopping.contains("\nEXTEND_TIMEOUT_USEC=100000000\n"), "{stopping}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_in_the_status_line_and_is_no_reason_to_be_killed() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let notified = Notified::at(&site);
    let variables = [("NOTIFY_SOCKET", notified.path.as_str()), ("WATCHDOG_USEC", "1000000")];
    let server = site.start_with(&variables);
    server.send(&message()).await;
    let status = notified.wait_for("STATUS=pending 1, sent 0/min; sending is paused: ");
    assert_eq!(status.lines().count(), 1, "{status}");
    assert_eq!(notified.wait_for("WATCHDOG="), "WATCHDOG=1\n");
}

#[tokio::test]
async fn nobody_is_told_that_a_service_is_ready_which_cannot_listen() {
    let site = Site::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("listen = \"{}\"", taken.local_addr().unwrap());
    site.reconfigure("listen = \"127.0.0.1:0\"\noperator", &format!("{listen}\noperator"));
    let notified = Notified::at(&site);
    let output = site.command(&["serve"]).env("NOTIFY_SOCKET", &notified.path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    notified.socket.set_nonblocking(true).unwrap();
    assert!(notified.receive().is_err(), "nothing else was said");
}

#[tokio::test]
async fn a_second_socket_is_refused_because_nobody_would_answer_there() {
    let site = Site::new().await;
    let script = "exec 3</dev/null 4<&3; export LISTEN_FDS=2 LISTEN_PID=$$;";
    let output = site.service_after(script).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("single ListenStream="), "{error}");
}
