//! The system's own program that listens for a service: `systemd-socket-activate`.

use std::time::Instant;

use crate::kit::{PATIENCE, Site, free_port, message};

#[tokio::test(flavor = "multi_thread")]
async fn systemd_socket_activate_starts_it_at_the_first_connection() {
    let site = Site::new().await;
    let address = format!("127.0.0.1:{}", free_port());
    let connecting = address.clone();
    let first = std::thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        loop {
            match std::net::TcpStream::connect(&connecting) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let pass = ["--setenv=AWS_ACCESS_KEY_ID", "--setenv=AWS_SECRET_ACCESS_KEY"];
    let listen = ["--listen", address.as_str(), "--fdname=clients"];
    let service = [env!("CARGO_BIN_EXE_pillarbox"), "serve", "--config"];
    let arguments = [&listen[..], &pass[..], &service[..]].concat();
    let server = site.start_by(site.service_in("systemd-socket-activate", &arguments));
    drop(first.join().unwrap());
    assert_eq!(server.base, format!("http://{address}"));
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    server.terminate().await;
}
