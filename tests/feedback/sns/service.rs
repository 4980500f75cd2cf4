//! The listener as a part of the service.

use std::net::SocketAddr;
use std::path::Path;

use pillarbox::clock::Clock;
use pillarbox::config::{Config, Sns};
use pillarbox::service::{Service, ServiceError};
use pillarbox::ses::credentials::Credentials;
use secrecy::SecretString;

use super::TOPIC;

const ANY: &str = "127.0.0.1:0";

async fn start(directory: &Path, listen: SocketAddr, topic: &str) -> Result<Service, ServiceError> {
    let mut config = Config {
        listen: ANY.parse().unwrap(),
        data_dir: directory.join("data"),
        admin_socket: directory.join("admin.sock"),
        ..Config::default()
    };
    config.ses.endpoint = Some("http://127.0.0.1:1".parse().unwrap());
    config.ses.events.sns = Some(Sns { listen, topics: vec![topic.to_owned()] });
    std::fs::create_dir_all(&config.data_dir).unwrap();
    let credentials = Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret"));
    Service::start(&config, Clock::system(), credentials, None).await
}

#[tokio::test]
async fn the_service_takes_posts_on_a_listener_of_their_own_until_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path(), ANY.parse().unwrap(), TOPIC).await.unwrap();
    let sns = service.sns_address().unwrap();
    let clients = service.address();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let posted = async |address: SocketAddr, path: &str| {
        let request = client.post(format!("http://{address}{path}")).body("{}");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(posted(sns, "/provider/sns").await, 403);
    assert_eq!(posted(sns, "/emails").await, 404);
    assert_eq!(posted(clients, "/provider/sns").await, 401);
    assert_eq!(service.feedback().counts().forged, 1);
    service.stop().await;
    let request = client.post(format!("http://{sns}/provider/sns")).body("{}");
    assert!(request.send().await.unwrap_err().is_connect());
}

#[tokio::test]
async fn a_start_without_the_listener_fails_and_names_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind(ANY).unwrap();
    let address = taken.local_addr().unwrap();
    let error = start(directory.path(), address, TOPIC).await.unwrap_err().to_string();
    assert!(error.contains("ses.events.sns_listen"), "{error}");
    assert!(error.contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn a_topic_whose_posts_cannot_be_verified_is_refused_at_the_start() {
    for topic in [
        "arn:aws-iso:sns:us-iso-east-1:123456789012:pillarbox",
        "arn:aws:sns:EU-WEST-1:123456789012:pillarbox",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let error = start(directory.path(), ANY.parse().unwrap(), topic).await.unwrap_err();
        assert!(error.to_string().contains("ses.events.sns_topics"), "{error}");
    }
}
