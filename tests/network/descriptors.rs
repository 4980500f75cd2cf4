//! File descriptors, used up by clients that connect and stay.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::client::{Client, post};
use crate::kit::PATIENCE;
use crate::patrons::Patrons;
use crate::site::Running;

/// Few enough that a start leaves none to spare.
const FEW: u32 = 40;

/// Connects so often; some of it may fail.
async fn crowd(address: SocketAddr, connections: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..connections {
        crowd.extend(TcpStream::connect(address).await);
    }
    crowd
}

/// Waits until a new connection is served.
async fn until_served(site: &Running) {
    let target = site.target();
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Ok(mut client) = Client::connect(&target).await
            && let Ok(answer) = client.ask(post(&target, "After")).await
            && answer.status == 200
        {
            return;
        }
        assert!(std::time::Instant::now() < end, "nobody new is served: {}", site.process.log());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_never_take_the_descriptors_that_sending_needs() {
    let site = Running::start("max_connections = 1000\n", Some(80)).await;
    assert!(
        site.process.log().contains("too few for max_connections = 1000"),
        "{}",
        site.process.log()
    );
    let mut patrons = Patrons::Staying.arrive(&site).await;
    let crowd = crowd(site.target().address, 300).await;
    assert!(crowd.len() > 80);
    let figures = patrons.measure(crate::length()).await;
    println!("descriptors kept: {figures}");
    // A call to the provider needs a descriptor too.
    let target = site.target();
    let mut client = patrons.leave();
    let accepted = client.ask(post(&target, "Through")).await.unwrap();
    assert_eq!(accepted.status, 200, "{}", accepted.body);
    client.until_sent(&target, &accepted.body).await;
    assert!(!site.process.log().contains("cannot be accepted"), "{}", site.process.log());
    drop(crowd);
    until_served(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_without_descriptors_rests_and_recovers() {
    let site = Running::start("", Some(FEW)).await;
    let target = site.target();
    let mut client = Client::connect(&target).await.unwrap();
    assert_eq!(client.ask(post(&target, "Before")).await.unwrap().status, 200);
    // Clients without a key may have half of the limit, and operators have connections of their own.
    let operators = site.process.operator_listening().parse().unwrap();
    let crowd = [crowd(target.address, 200).await, crowd(operators, 60).await];
    let end = std::time::Instant::now() + PATIENCE;
    while !site.process.log().contains("cannot be accepted") {
        assert!(std::time::Instant::now() < end, "{} files open", site.process.open_files());
        sleep(Duration::from_millis(20)).await;
    }
    // Clients that are connected are served.
    let before = site.process.processor_ticks();
    for _ in 0..10 {
        assert_eq!(client.ask(post(&target, "During")).await.unwrap().status, 200);
        sleep(Duration::from_millis(200)).await;
    }
    // A loop that spins takes two hundred in the two seconds.
    let used = site.process.processor_ticks() - before;
    assert!(used < 100, "{used} ticks");
    drop(crowd);
    until_served(&site).await;
}
