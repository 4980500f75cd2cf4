//! The yardsticks: hyper and `serde_json` with nothing behind them, or with a journal alone.
//!
//! It reads the request, parses it into fields and answers with an id; or it answers with a
//! record as JSON. No key is checked, nothing is kept. With a journal it answers when a row of
//! zeros is on disk: no service that keeps its word can be faster (the durable ceiling). With a
//! relay it passes messages on (the sending ceiling). At SES's paths it answers as a provider does.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::journal::Journal;
use crate::relay::{Email, PENDING_PATH, PROVIDER_PATHS, Relay, provider_answer};

static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    id: &'a str,
    status: &'a str,
    to: [&'a str; 1],
    subject: &'a str,
    tag: &'a str,
    attempts: u32,
    error: Option<&'a str>,
    ses_message_id: Option<&'a str>,
    created_at: &'a str,
    sent_at: Option<&'a str>,
    last_event: Option<&'a str>,
}

/// Handling of an accepted message by the bare server.
#[derive(Debug, Clone)]
pub(crate) enum Behind {
    /// The message is dropped.
    Nothing,
    /// A row is written for it.
    Journal(Journal),
    /// It is passed on.
    Relay(Relay),
}

/// Serves until the process is killed.
pub(crate) fn serve(address: SocketAddr, behind: &Behind) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let behind = behind.clone();
            tokio::spawn(async move {
                let answer = service_fn(|request| answer(request, &behind));
                let served =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                // The load generator cuts its connections off at its end.
                drop(served);
            });
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    behind: &Behind,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let (status, body) = if path.starts_with(PROVIDER_PATHS) {
        let answer = provider_answer(path);
        // The connection can be used again only once the body is read.
        let read = request.into_body().collect().await;
        (if read.is_ok() { StatusCode::OK } else { StatusCode::BAD_REQUEST }, answer)
    } else if request.method() == Method::POST {
        match request.into_body().collect().await {
            Ok(body) => match serde_json::from_slice::<Email>(&body.to_bytes()) {
                Ok(email) => {
                    match behind {
                        Behind::Nothing => {}
                        Behind::Journal(journal) => journal.append().await,
                        Behind::Relay(relay) => relay.pass_on(&email),
                    }
                    std::hint::black_box(email);
                    let number = NEXT.fetch_add(1, Ordering::Relaxed);
                    (StatusCode::OK, format!(r#"{{"id":"00000000-0000-7000-8000-{number:012x}"}}"#))
                }
                Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            },
            Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
        }
    } else if let (PENDING_PATH, Behind::Relay(relay)) = (path, behind) {
        (StatusCode::OK, relay.pending().to_string())
    } else {
        let id = path.trim_start_matches("/emails/");
        (StatusCode::OK, serde_json::to_string(&record(id)).unwrap_or_default())
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    Ok(response)
}

fn record(id: &str) -> Record<'_> {
    Record {
        id,
        status: "sent",
        to: ["Ada Lovelace <ada.lovelace@example.org>"],
        subject: "Your order 4711 is on its way",
        tag: "transactional",
        attempts: 1,
        error: None,
        ses_message_id: Some("0100019aa5f0c3a1-00000000-0000-0000-0000-000000000000-000000"),
        created_at: "2026-11-21T09:30:00.123Z",
        sent_at: Some("2026-11-21T09:30:00.456Z"),
        last_event: None,
    }
}
