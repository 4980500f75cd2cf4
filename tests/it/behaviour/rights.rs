//! A right that ends while a request is read: nothing is accepted with it.

use std::time::Duration;

use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::KeyRights;
use pillarbox_simulator::Options;
use pillarbox_store::NewApiKey;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kit::{
    self, LocalService, NOON, PATIENCE, Server, Site, SmtpClient, accepted_id, answer, codes,
    message,
};

const LISTEN: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
const SECOND: Duration = Duration::from_secs(1);

/// A request whose last byte is not written yet.
struct Half {
    stream: TcpStream,
    rest: Vec<u8>,
}

impl Half {
    /// Posts to a path of the service at this address.
    async fn post(address: &str, key: &str, path: &str, body: &Value) -> Self {
        let mut body = body.to_string().into_bytes();
        // The service answers that it reads: it knows the key by then.
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut said = [0; 25];
        timeout(PATIENCE, stream.read_exact(&mut said)).await.unwrap().unwrap();
        assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
        let rest = body.split_off(body.len() / 2);
        stream.write_all(&body).await.unwrap();
        Self { stream, rest }
    }

    /// The status and the code of the answer, once all is written.
    async fn answer(mut self) -> (String, Value) {
        self.stream.write_all(&self.rest).await.unwrap();
        let mut text = String::new();
        timeout(PATIENCE, self.stream.read_to_string(&mut text)).await.unwrap().unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().to_owned();
        if status == "401" {
            assert!(head.to_lowercase().contains("www-authenticate: bearer"), "{head}");
        }
        (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{text}")))
    }
}

/// The last key that was added.
fn last_key(site: &Site) -> String {
    let keys = site.done(&["key", "list", "--json"]);
    let keys: Value = serde_json::from_slice(&keys.stdout).unwrap();
    keys["keys"].as_array().unwrap().last().unwrap()["id"].to_string().trim_matches('"').to_owned()
}

async fn listed(server: &Server) -> usize {
    let (_, page) = answer(server.get("/emails?limit=100").send().await.unwrap()).await;
    page["emails"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_right_ends_while_it_is_read_is_refused() {
    let site = Site::new().await;
    let server = site.start();
    let address = server.base.strip_prefix("http://").unwrap().to_owned();
    let key = || {
        let added = site.done(&["key", "add", "--org", "acme", "--json"]);
        let added: Value = serde_json::from_slice(&added.stdout).unwrap();
        (added["key"].as_str().unwrap().to_owned(), last_key(&site))
    };
    let other = site.add_organisation("beta", "beta.example");
    let batch = json!({ "emails": [message(), message()] });
    let of_beta =
        json!({ "from": "a@beta.example", "to": ["b@x.org"], "subject": "a", "text": "b" });
    let first_is_fine = json!({ "emails": [message(), of_beta] });

    let (revoked, number) = key();
    let one = Half::post(&address, &revoked, "/emails", &message()).await;
    let many = Half::post(&address, &revoked, "/emails/batch", &batch).await;
    // A key that is there throughout is not affected by others.
    let fine = Half::post(&address, &server.key, "/emails", &message()).await;
    let of_removed = Half::post(&address, &other, "/emails", &of_beta).await;
    site.done(&["key", "revoke", &number]);
    site.done(&["org", "remove", "beta"]);
    for half in [one, many, of_removed] {
        let (status, body) = half.answer().await;
        assert_eq!((status.as_str(), &body["error"]["code"]), ("401", &json!("Unauthorized")));
    }
    let (status, body) = fine.answer().await;
    assert_eq!(status, "200", "{body}");
    assert_eq!(listed(&server).await, 1);

    site.done(&["domain", "add", "--org", "acme", "beta.example", "--assume-verified"]);
    let one = Half::post(&address, &server.key, "/emails", &of_beta).await;
    let many = Half::post(&address, &server.key, "/emails/batch", &first_is_fine).await;
    site.done(&["domain", "remove", "--org", "acme", "beta.example"]);
    for (half, field) in [(one, "from"), (many, "emails[1].from")] {
        let (status, body) = half.answer().await;
        assert_eq!((status.as_str(), &body["error"]["code"]), ("422", &json!("UnverifiedDomain")));
        assert_eq!(body["error"]["field"], field);
    }
    assert_eq!(listed(&server).await, 1);
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_whose_right_ends_while_it_is_read_is_refused() {
    let site = Site::with(LISTEN, Options::default()).await;
    let server = site.start();
    let address = server.process.smtp_listening();
    let begin = async |key: &str, from: &str| {
        let mut client = SmtpClient::login(&address, key).await.unwrap();
        client.ask_for(&format!("MAIL FROM:<{from}>"), "250 ").await.unwrap();
        client.ask_for("RCPT TO:<bob@example.org>", "250 ").await.unwrap();
        client.ask_for("DATA", "354 ").await.unwrap();
        client.write("From: ann@example.com\r\n").await.unwrap();
        client
    };
    let end = async |client: &mut SmtpClient, more: &str| {
        client.write(&format!("{more}\r\nHi\r\n.\r\n")).await.unwrap();
        client.reply().await.unwrap()
    };
    let add = || {
        let added = site.done(&["key", "add", "--org", "acme", "--json"]);
        let added: Value = serde_json::from_slice(&added.stdout).unwrap();
        (added["key"].as_str().unwrap().to_owned(), last_key(&site))
    };

    let (revoked, number) = add();
    let mut in_data = begin(&revoked, "ann@example.com").await;
    let mut idle = Vec::new();
    for _ in 0..6 {
        idle.push(SmtpClient::login(&address, &revoked).await.unwrap());
    }
    let mut quits = SmtpClient::login(&address, &revoked).await.unwrap();
    let mut fine = begin(&server.key, "ann@example.com").await;
    site.done(&["key", "revoke", &number]);
    let reply = end(&mut in_data, "").await;
    assert_eq!(codes(&reply), "530 5.7.0", "{reply}");
    assert_eq!(in_data.last_words().await.unwrap().0, "", "the connection is closed");
    let commands =
        ["MAIL FROM:<ann@example.com>", "NOOP", "RSET", "EHLO client", "RCPT TO:<a@x.org>", "DATA"];
    for (mut client, command) in idle.into_iter().zip(commands) {
        assert_eq!(codes(&client.ask(command).await.unwrap()), "530 5.7.0", "{command}");
        assert_eq!(client.last_words().await.unwrap().0, "", "{command}");
    }
    assert_eq!(codes(&quits.ask("QUIT").await.unwrap()), "221 2.0.0");
    assert!(accepted_id(&end(&mut fine, "").await).is_some());

    // A domain: the session goes on.
    let domain = ["domain", "add", "--org", "acme", "beta.example", "--assume-verified"];
    for (from, more) in [
        ("ann@beta.example", ""),
        ("ann@example.com", "Sender: ann@beta.example\r\n"),
        ("ann@example.com", "Resent-From: ann@example.com, ann@beta.example\r\n"),
    ] {
        site.done(&domain);
        let mut client = begin(&server.key, from).await;
        site.done(&["domain", "remove", "--org", "acme", "beta.example"]);
        assert_eq!(codes(&end(&mut client, more).await), "550 5.7.1", "{from} {more}");
        assert_eq!(codes(&client.ask("NOOP").await.unwrap()), "250 2.0.0");
    }
    let mut removed = begin(&server.key, "ann@example.com").await;
    site.done(&["org", "remove", "acme"]);
    assert_eq!(codes(&end(&mut removed, "").await), "530 5.7.0");
    assert_eq!(removed.last_words().await.unwrap().0, "");
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_expires_while_a_request_is_read_accepts_nothing() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let local =
        LocalService::start(Options::default(), |config, _| config.smtp.listen = listen).await;
    let store = local.service.store();
    let acme = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let key = pillarbox_domain::api_key::ApiKey::generate().unwrap();
    let expires_at = Some(NOON.plus(SECOND));
    let new =
        NewApiKey { label: String::new(), expires_at, hash: key.hash(), rights: KeyRights::all() };
    store.add_api_key(acme, new, NOON).await.unwrap();
    let address = local.service.address().to_string();
    let one = Half::post(&address, key.reveal(), "/emails", &message()).await;
    let batch = json!({ "emails": [message()] });
    let many = Half::post(&address, key.reveal(), "/emails/batch", &batch).await;
    let smtp = local.service.smtp_addresses()[0];
    let mut client = SmtpClient::login(smtp, key.reveal()).await.unwrap();
    client.begin(&["bob@example.org"]).await.unwrap();
    let in_time = Half::post(&address, key.reveal(), "/emails", &message()).await;
    local.clock.advance(SECOND.saturating_sub(Duration::from_millis(1)));
    assert_eq!(in_time.answer().await.0, "200");
    local.clock.advance(Duration::from_millis(1));
    for half in [one, many] {
        let (status, body) = half.answer().await;
        assert_eq!((status.as_str(), &body["error"]["code"]), ("401", &json!("Unauthorized")));
    }
    client.write("From: ann@example.com\r\n\r\nHi\r\n.\r\n").await.unwrap();
    assert_eq!(codes(&client.reply().await.unwrap()), "530 5.7.0");
    assert_eq!(client.last_words().await.unwrap().0, "");
    let (_, page) = kit::get(&local.client, &local.service, &local.key, "/emails").await;
    assert_eq!(page["emails"].as_array().unwrap().len(), 1);
    let domain = DomainName::parse("example.com").unwrap();
    assert!(
        store.sender_status(acme, &domain)
            == pillarbox_domain::organisation::SenderStatus::Verified
    );
}
