//! The log: each line about a request names the request by the id that its client was given; and
//! the journal gets lines in its own form.

use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use redb::TableDefinition;
use reqwest::Response;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::kit::{PATIENCE, Server, Site, SmtpClient, answer, message, message_with};

/// Sets what systemd sets if standard error is the journal.
const IN_JOURNAL: &str = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2);";

fn id_of(response: &Response) -> String {
    response.headers()["x-request-id"].to_str().unwrap().to_owned()
}

/// Sends bytes that are no request; gives the id of what is answered.
async fn send_raw(server: &Server, bytes: &[u8]) -> String {
    let address = server.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let answer = answer.to_lowercase();
    let (_, rest) = answer.split_once("x-request-id: ").unwrap_or_else(|| panic!("{answer}"));
    rest.lines().next().unwrap().trim().to_owned()
}

/// Makes a message's row unreadable, while no service runs.
fn damage(site: &Site, id: &str) {
    const MESSAGES: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("messages");
    if let Some(database) = site.database() {
        database.run(&format!("UPDATE message SET record = '\\xff' WHERE id = '{id}'"));
        return;
    }
    let key = *uuid::Uuid::parse_str(id).unwrap().as_bytes();
    let file = redb::Database::open(site.data_dir().join("pillarbox.redb")).unwrap();
    let transaction = file.begin_write().unwrap();
    let row =
        transaction.open_table(MESSAGES).unwrap().insert(key, &b"\xff"[..]).unwrap().is_some();
    assert!(row, "the message is there");
    transaction.commit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_about_a_request_has_the_id_that_its_client_was_given() {
    let site = Site::new().await;
    let server = site.start();
    let damaged = server.send(&message()).await;
    server.wait_for(&damaged, "sent").await;
    server.terminate().await;
    damage(&site, &damaged);
    let server = site.start();

    let keyed = message_with("idempotencyKey", json!("order-1815"));
    let accepted = server.post(&keyed).send().await.unwrap();
    let accepted_id = id_of(&accepted);
    let message_id = answer(accepted).await.1["id"].clone();
    let message_id = message_id.as_str().unwrap().to_owned();
    assert_eq!(accepted_id, message_id, "a new message's id is that of its request");
    let batch = json!({"emails": [keyed, message(), message()]});
    let request = server.client.post(format!("{}/emails/batch", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    let batch = request.body(batch.to_string()).send().await.unwrap();
    let batch_id = id_of(&batch);
    let batch = answer(batch).await.1;
    assert_eq!(batch["emails"][1]["id"], *batch_id, "that of a batch is its first new message's");
    server.wait_for(&message_id, "sent").await;
    let replayed = server.post(&keyed).send().await.unwrap();
    assert!(replayed.headers().contains_key("idempotent-replayed"));
    let marketing = server.post(&message_with("tag", json!("marketing"))).send().await.unwrap();
    let no_json = server.post_bytes("{").send().await.unwrap();
    let stranger = server.client.get(format!("{}/emails", server.base)).send().await.unwrap();
    let nowhere = server.get("/nowhere").send().await.unwrap();
    let method = server.client.delete(format!("{}/emails", server.base)).bearer_auth(&server.key);
    let method = method.send().await.unwrap();
    let fault = server.get(&format!("/emails/{damaged}")).send().await.unwrap();
    assert_eq!(fault.status(), 500);
    let no_http = send_raw(&server, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
    let broken = format!(
        "POST /emails HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: \
         application/json\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
        server.key
    );
    let no_body = send_raw(&server, broken.as_bytes()).await;

    let expected = [
        (accepted_id.clone(), "queued"),
        (accepted_id, "accepted"),
        (id_of(&replayed), "accepted"),
        (id_of(&marketing), "UnsupportedTag"),
        (id_of(&no_json), "InvalidJson"),
        (id_of(&stranger), "Unauthorized"),
        (id_of(&nowhere), "NotFound"),
        (id_of(&method), "MethodNotAllowed"),
        (id_of(&fault), "a row of the store is damaged"),
        (no_http, "BadRequest"),
        (no_body, "BadRequest"),
    ];
    let log = server.terminate().await;
    for (id, what) in &expected {
        let name = format!("request_id={id}");
        let found = log.lines().any(|line| line.contains(&name) && line.contains(what));
        assert!(found, "no line with {name} says {what}:\n{log}");
    }
    // And the other way round: a line about a request is about one of these, or about a question
    // after the message.
    for line in log.lines() {
        let tells = ["queued", "accepted", "refused", "a request", "a handler"];
        if tells.iter().any(|word| line.contains(word)) && !line.contains("stopping:") {
            assert!(line.contains("request_id="), "{line}");
        }
    }
    // From there, the message's own id leads to the provider's answer.
    let outcome = log.lines().find(|line| line.contains("sent ") && line.contains(&message_id));
    assert!(outcome.is_some_and(|line| line.contains("ses_message_id=")), "{log}");
    assert!(!log.contains('\u{1b}'), "there are colours where there is no terminal");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_gets_priorities_and_keeps_the_time_itself() {
    let site = Site::new().await;
    let server = site.start_by(site.service_after(IN_JOURNAL));
    let fault = server.post(&message_with("tag", json!("marketing"))).send().await.unwrap();
    let id = id_of(&fault);
    // A line at `debug`.
    assert_eq!(server.get("/usage").send().await.unwrap().status(), 200);
    site.reconfigure("[ses]", "max_request_bytes = 4096\n[ses]");
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while !server.log().contains("the configuration was read again") {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = server.terminate().await;
    for line in log.lines() {
        let (priority, rest) = line.split_at(3);
        let level = rest.split_whitespace().next().unwrap();
        let expected = match level {
            "ERROR" => "<3>",
            "WARN" => "<4>",
            "INFO" => "<6>",
            "DEBUG" | "TRACE" => "<7>",
            other => panic!("{other} is no level: {line}"),
        };
        assert_eq!(priority, expected, "{line}");
    }
    assert!(log.contains("<6>") && log.contains("<7>") && log.contains("<4>"), "{log}");
    assert!(log.contains(&id), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_each_refusal_is_a_line_with_its_id_and_a_flood_is_counted() {
    const FLOOD: usize = 500;
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"\n", Options::default()).await;
    let mut command = site.service();
    command.env_remove("RUST_LOG");
    let server = site.start_by(command);
    let accepted = server.post(&message()).send().await.unwrap();
    let refused = server.post(&message_with("tag", json!("marketing"))).send().await.unwrap();
    let stranger = server.client.get(format!("{}/emails", server.base)).send().await.unwrap();
    let malformed = send_raw(&server, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
    let probe = server.client.get(format!("{}/healthz", server.operator));
    let probe = probe.header("host", "evil.example").send().await.unwrap();
    let mut session =
        SmtpClient::login(server.process.smtp_listening(), &server.key).await.unwrap();
    assert!(session.ask("MAIL FROM:<a@other.example>").await.unwrap().starts_with("550"));
    // The last of the lines, which are read from the process meanwhile.
    let end = Instant::now() + PATIENCE;
    while !server.log().contains("refused over SMTP") {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = server.log();
    let line = |id: &str| {
        let found = log.lines().find(|line| line.contains(&format!("request_id={id} ")));
        found.unwrap_or_else(|| panic!("no line with {id}:\n{log}")).to_owned()
    };
    for (id, code, organisation) in [
        (id_of(&refused), "UnsupportedTag", Some("acme")),
        (id_of(&stranger), "Unauthorized", None),
        (malformed, "BadRequest", None),
        (id_of(&probe), "Forbidden", None),
    ] {
        let line = line(&id);
        assert!(line.contains("INFO") && line.contains(&format!("code=\"{code}\"")), "{line}");
        match organisation {
            Some(name) => assert!(line.contains(&format!("organisation=\"{name}\"")), "{line}"),
            None => assert!(!line.contains("organisation="), "{line}"),
        }
    }
    assert!(line(&id_of(&probe)).contains("took_ms="));
    assert!(!log.contains(&id_of(&accepted)), "what is accepted is for debug");
    assert!(log.lines().any(|line| line.contains("refused over SMTP") && line.contains("acme")));
    for word in ["bob@", "example.org", "ann@", "a@other"] {
        assert!(!log.contains(word), "{word}: {log}");
    }

    // A flood. The lines of the client listener that are written and those that are left out are all.
    let lines =
        |log: &str| log.lines().filter(|line| line.contains("code=\"InvalidJson\"")).count();
    let left_out = |log: &str| {
        let counts =
            log.lines().filter_map(|line| line.split_once("left_out=")?.1.parse::<usize>().ok());
        counts.sum::<usize>()
    };
    for _ in 0..FLOOD {
        assert_eq!(server.post_bytes("{").send().await.unwrap().status(), 400);
    }
    let end = Instant::now() + PATIENCE;
    while lines(&server.log()) + left_out(&server.log()) < FLOOD {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = server.log();
    assert_eq!(lines(&log) + left_out(&log), FLOOD);
    assert!(left_out(&log) > 0, "{log}");
}
