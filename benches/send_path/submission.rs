//! Acceptance over SMTP beside acceptance over HTTP, of messages of the same size, by the same
//! service in the same round; and what other receivers of SMTP take, if they are there.
//!
//! The load is our own: Postfix's `smtp-source` cannot authenticate. Against receivers that ask for no
//! key both are measured, so that one can be held against the other.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::accept::{warm_run, warm_up};
use crate::load::Requests;
use crate::message::{self, Key, UNIQUE_NUMBER};
use crate::process::{Server, free_address, prepared, sasl_plain};
use crate::queue::cancel_all;
use crate::report::{Bound, Report, median};
use crate::scale::Scale;

/// Sessions, and connections of HTTP.
const SESSIONS: usize = 64;
/// Longest reply that is read, in bytes.
const MAX_REPLY_BYTES: usize = 4 * 1024;
/// Messages that `smtp-source` sends.
const SOURCE_MESSAGES: usize = 20_000;
/// Time limit for a receiver to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Choice whether a session waits for each reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// After each command, as `smtp-source` does.
    OneByOne,
    /// After the group of MAIL, RCPT and DATA, and after the message (RFC 2920).
    Pipelined,
}

impl Manner {
    const BOTH: [Self; 2] = [Self::OneByOne, Self::Pipelined];

    const fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one_by_one",
            Self::Pipelined => "pipelined",
        }
    }
}

/// Result of a load.
#[derive(Debug, Clone, Copy)]
struct Seen {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time of the server for each message; zero if it is not known.
    processor_us: f64,
}

/// Accepts alternately over HTTP and over SMTP; `postfix` is a receiver to measure beside them.
pub(crate) fn submission(
    scale: &Scale,
    postfix: Option<SocketAddr>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let provider = Server::paused_simulator()?;
    let mut http = Vec::new();
    let mut smtp = [Vec::new(), Vec::new()];
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..scale.rounds {
        let directory = prepared()?;
        let address = free_address()?;
        let service = Server::service_with_smtp(directory.path(), &provider, address)?;
        warm_up(&service, directory.path(), SESSIONS, scale)?;
        let requests = Requests::Messages(Key::Unique);
        let seen = warm_run(&service, &requests, SESSIONS, scale)?;
        cancel_all(directory.path())?;
        let over_http = Seen {
            per_second: seen.rate(),
            p50_us: seen.p50_us,
            p99_us: seen.p99_us,
            processor_us: seen.processor_us,
        };
        http.push(over_http);
        for (number, manner) in Manner::BOTH.into_iter().enumerate() {
            let login = sasl_plain();
            run(address, Some(&login), manner, Duration::from_secs(1))?;
            let used_before = service.processor_time()?;
            let (mut seen, messages) = run(address, Some(&login), manner, scale.load_time)?;
            let used = service.processor_time()?.saturating_sub(used_before);
            seen.processor_us = used.as_secs_f64() * 1e6 / messages;
            cancel_all(directory.path())?;
            ratios[number].push(seen.per_second / over_http.per_second);
            smtp[number].push(seen);
        }
        service.kill();
    }
    let [one_by_one, pipelined] = ratios.map(median);
    let what = "accepts/s over SMTP ÷ over HTTP, 64 sessions, one command at a time";
    report.goal(what, Bound::AtLeast(0.5), "", one_by_one);
    report.goal(
        &what.replace("one command at a time", "pipelined"),
        Bound::AtLeast(0.5),
        "",
        pipelined,
    );
    report.figure(
        "submission",
        json!({
            "sessions": SESSIONS,
            "rounds": scale.rounds,
            "http": middle(&http),
            "smtp_one_by_one": middle(&smtp[0]),
            "smtp_pipelined": middle(&smtp[1]),
            "of_http_one_by_one": one_by_one,
            "of_http_pipelined": pipelined,
        }),
    );
    if let Some(address) = postfix {
        report.figure("postfix", other(address, scale)?);
    }
    if let Some(sink) = Sink::start()? {
        report.figure("smtp_sink", other(sink.address, scale)?);
    }
    Ok(())
}

/// Result of another receiver, which asks for no key.
fn other(address: SocketAddr, scale: &Scale) -> anyhow::Result<Value> {
    let mut figures = json!({});
    for manner in Manner::BOTH {
        let mut rounds = Vec::new();
        for _ in 0..scale.rounds {
            run(address, None, manner, Duration::from_secs(1))?;
            rounds.push(run(address, None, manner, scale.load_time)?.0);
        }
        figures[manner.name()] = middle(&rounds);
    }
    let begun = Instant::now();
    let source = Command::new("smtp-source")
        .args(["-s", &SESSIONS.to_string(), "-m", &SOURCE_MESSAGES.to_string()])
        .args(["-l", &message::LENGTH.to_string(), "-f", &sender(), "-t", "ada@example.org"])
        .arg(address.to_string())
        .stdin(Stdio::null())
        .status();
    if source.is_ok_and(|status| status.success()) {
        #[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
        let per_second = SOURCE_MESSAGES as f64 / begun.elapsed().as_secs_f64();
        figures["smtp_source"] = json!({ "per_second": per_second });
    }
    Ok(figures)
}

/// Medians of the rounds, as JSON.
fn middle(rounds: &[Seen]) -> Value {
    let of = |pick: fn(&Seen) -> f64| median(rounds.iter().map(pick).collect());
    json!({
        "per_second": of(|seen| seen.per_second),
        "p50_us": of(|seen| seen.p50_us),
        "p99_us": of(|seen| seen.p99_us),
        "processor_us": of(|seen| seen.processor_us),
    })
}

fn sender() -> String {
    format!("orders@{}", message::DOMAIN)
}

/// The message of the other benches, as SMTP carries it, in the same number of bytes.
fn content() -> String {
    let json: Value = serde_json::from_str(&message::json(Key::None)).expect("it is JSON");
    let lines = |name: &str| {
        let text = json[name].as_str().expect("it has both bodies");
        text.trim_end().lines().flat_map(folded).collect::<Vec<_>>().join("\r\n")
    };
    let head = format!(
        "From: Example Shop <{}>\r\nTo: Ada Lovelace <ada.lovelace@example.org>\r\n\
         Subject: Your order 4711 is on its way\r\nMessage-ID: <{UNIQUE_NUMBER}@{}>\r\n\
         MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n",
        sender(),
        message::DOMAIN
    );
    let part = |kind: &str, text: &str| {
        format!("--b\r\nContent-Type: text/{kind}; charset=utf-8\r\n\r\n{text}\r\n")
    };
    let text = part("plain", &lines("text"));
    let mut html = lines("html");
    let others = head.len() + text.len() + part("html", "").len() + "--b--\r\n".len();
    let room = message::LENGTH.saturating_sub(others);
    while html.len() > room {
        html.pop();
    }
    if html.ends_with('\r') {
        html.pop();
    }
    // A line has room for 998 octets, and no more than some hundred are missing.
    let filler = "It leaves our house today. ".repeat(20);
    html.push_str(&filler[..room - html.len()]);
    let content = format!("{head}{text}{}--b--\r\n", part("html", &html));
    assert_eq!(content.len(), message::LENGTH, "as many bytes as over HTTP");
    content
}

/// Parts of a line, each of which SMTP takes: it has at most 998 octets (RFC 5322 section 2.1.1).
fn folded(line: &str) -> Vec<String> {
    const CHARS: usize = 400;
    let chars: Vec<char> = line.chars().collect();
    let parts = chars.chunks(CHARS).map(|part| part.iter().collect());
    if chars.is_empty() { vec![String::new()] } else { parts.collect() }
}

/// Submits messages over all sessions for a while; gives what was seen, and how many messages.
fn run(
    address: SocketAddr,
    login: Option<&str>,
    manner: Manner,
    time: Duration,
) -> anyhow::Result<(Seen, f64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let load = Rc::new(Load {
        address,
        login: login.map(str::to_owned),
        manner,
        end: Instant::now() + time,
        parts: content().split_once(UNIQUE_NUMBER).map(|(a, b)| (a.to_owned(), b.to_owned())),
        run: now,
        number: Cell::new(0),
    });
    let begun = Instant::now();
    let mut times = Histogram::<u64>::new(3)?;
    runtime.block_on(LocalSet::new().run_until(async {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| tokio::task::spawn_local(Session::run(Rc::clone(&load))))
            .collect();
        for session in sessions {
            times.add(session.await??)?;
        }
        anyhow::Ok(())
    }))?;
    let elapsed = begun.elapsed().as_secs_f64();
    if times.is_empty() {
        bail!("{address} took no message");
    }
    #[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
    let (messages, at) = (times.len() as f64, |quantile| times.value_at_quantile(quantile) as f64);
    let seen = Seen {
        per_second: messages / elapsed,
        p50_us: at(0.5),
        p99_us: at(0.99),
        processor_us: 0.0,
    };
    Ok((seen, messages))
}

/// Shared state of all sessions of a run.
struct Load {
    address: SocketAddr,
    login: Option<String>,
    manner: Manner,
    end: Instant,
    /// The message before and after its number.
    parts: Option<(String, String)>,
    run: u128,
    number: Cell<u64>,
}

struct Session {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Session {
    async fn run(load: Rc<Load>) -> anyhow::Result<Histogram<u64>> {
        let stream = TcpStream::connect(load.address).await?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, read: Vec::with_capacity(MAX_REPLY_BYTES) };
        session.expect("220").await?;
        session.ask("EHLO bench\r\n", "250").await?;
        if let Some(login) = &load.login {
            session.ask(login, "235").await?;
        }
        let mail = format!("MAIL FROM:<{}>\r\n", sender());
        let rcpt = "RCPT TO:<ada.lovelace@example.org>\r\n";
        let group = format!("{mail}{rcpt}DATA\r\n");
        let (before, after) = load.parts.as_ref().context("the message has a number")?;
        let mut times = Histogram::<u64>::new(3)?;
        let mut message = String::with_capacity(message::LENGTH + 64);
        while Instant::now() < load.end {
            let begun = Instant::now();
            match load.manner {
                Manner::OneByOne => {
                    session.ask(&mail, "250").await?;
                    session.ask(rcpt, "250").await?;
                    session.ask("DATA\r\n", "354").await?;
                }
                Manner::Pipelined => {
                    session.ask(&group, "250").await?;
                    session.expect("250").await?;
                    session.expect("354").await?;
                }
            }
            let number = load.number.replace(load.number.get() + 1);
            message.clear();
            message.push_str(before);
            write!(message, "{:x}-{number:010}", load.run)?;
            message.push_str(after);
            message.push_str(".\r\n");
            session.ask(&message, "250").await?;
            let micros = begun.elapsed().as_micros();
            times.record(u64::try_from(micros)?.max(1))?;
        }
        // Without a goodbye, which would be counted in.
        Ok(times)
    }

    async fn ask(&mut self, text: &str, code: &str) -> anyhow::Result<()> {
        self.stream.write_all(text.as_bytes()).await?;
        self.expect(code).await
    }

    /// Reads a reply, which must have this code.
    async fn expect(&mut self, code: &str) -> anyhow::Result<()> {
        loop {
            while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let is_last = self.read.get(3) != Some(&b'-');
                let is_expected = self.read.starts_with(code.as_bytes());
                if !is_expected {
                    bail!("not {code}: {}", self.read[..end].escape_ascii());
                }
                self.read.drain(..=end);
                if is_last {
                    return Ok(());
                }
            }
            if self.read.len() > MAX_REPLY_BYTES || self.stream.read_buf(&mut self.read).await? == 0
            {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

/// Postfix's `smtp-sink`, which throws away what it is given: no receiver is faster.
struct Sink {
    child: Child,
    address: SocketAddr,
}

impl Sink {
    /// Starts it if it is installed.
    fn start() -> anyhow::Result<Option<Self>> {
        let address = free_address()?;
        let mut command = Command::new("smtp-sink");
        if rustix::process::geteuid().is_root() {
            // It refuses to be root.
            command.args(["-u", "nobody"]);
        }
        command.arg(address.to_string()).arg("256").stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(child) = command.spawn() else { return Ok(None) };
        let sink = Self { child, address };
        let begun = Instant::now();
        while StdStream::connect(address).is_err() {
            if begun.elapsed() > START_LIMIT {
                bail!("smtp-sink does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(sink))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
