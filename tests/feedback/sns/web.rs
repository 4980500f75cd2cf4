//! A web server that answers as it is told, and keeps what it was asked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

type Answer = Box<dyn Fn(&str) -> String + Send + Sync>;

pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    connections: AtomicUsize,
    requests: Mutex<Vec<String>>,
    answer: Mutex<Answer>,
}

impl Web {
    /// A server over TLS where there is a configuration for it.
    pub(crate) async fn start(tls: Option<ServerConfig>, answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            connections: AtomicUsize::new(0),
            requests: Mutex::default(),
            answer: Mutex::new(Box::new(move |_| answer.clone())),
        });
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    match acceptor {
                        None => state.serve(stream).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                state.serve(stream).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, state, task }
    }

    /// Answers so from now on, by what is asked.
    pub(crate) fn answer(&self, answer: impl Fn(&str) -> String + Send + Sync + 'static) {
        *self.state.answer.lock().unwrap() = Box::new(answer);
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// What was asked, head and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// One request a connection.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S) {
        let mut bytes = Vec::new();
        let request = loop {
            if let Some(request) = whole(&bytes) {
                break request;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let answer = self.answer.lock().unwrap()(&request);
        self.requests.lock().unwrap().push(request);
        // The client may be gone.
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// The request, once it is all there.
fn whole(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    (body.len() >= length.unwrap_or(0)).then(|| text.to_owned())
}

/// An answer of HTTP/1.1, the connection's last.
pub(crate) fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

pub(crate) fn ok(body: &str) -> String {
    response("200 OK", "", body)
}
