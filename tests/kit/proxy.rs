//! A proxy for HTTP, as it stands between a network and the rest of the world: CONNECT, and requests
//! in absolute form. Behind port 443 it is AWS: it speaks TLS with its own certificate, and passes what
//! it reads on to the simulator.
//!
//! Must not know the service.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::install_crypto;

/// Names of AWS in the region of the simulator.
const AWS: [&str; 4] = [
    "email.eu-west-1.amazonaws.com",
    "sns.eu-west-1.amazonaws.com",
    "sqs.eu-west-1.amazonaws.com",
    "sts.eu-west-1.amazonaws.com",
];
const REFUSED: &str = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                       Proxy-Authenticate: Basic realm=\"proxy\"\r\nContent-Length: 0\r\n\r\n";

/// A proxy on a port of its own. It ends with the test.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    certificate: String,
    serving: JoinHandle<()>,
}

struct State {
    /// User and password, if it wants them.
    credentials: Option<String>,
    aws: SocketAddr,
    acceptor: TlsAcceptor,
    /// First lines of the requests that it took.
    taken: Mutex<Vec<String>>,
    refused: Mutex<usize>,
}

impl Proxy {
    /// A proxy that wants this user and password, as `user:password`, if it wants any. AWS is the
    /// simulator at this address.
    pub(crate) async fn start(credentials: Option<&str>, aws: SocketAddr) -> Self {
        install_crypto();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(AWS.map(str::to_owned)).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let state = Arc::new(State {
            credentials: credentials.map(str::to_owned),
            aws,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            taken: Mutex::default(),
            refused: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Arc::clone(&state)));
        Self { address, state, certificate: cert.pem(), serving }
    }

    /// Writes the certificate of its AWS, for `SSL_CERT_FILE`.
    pub(crate) fn write_certificate(&self, path: &Path) {
        std::fs::write(path, &self.certificate).unwrap();
    }

    /// First lines of the requests that it took, without the protocol.
    pub(crate) fn taken(&self) -> Vec<String> {
        self.state.taken.lock().unwrap().clone()
    }

    /// Number of requests that it refused because the user or the password was wrong.
    pub(crate) fn refused(&self) -> usize {
        *self.state.refused.lock().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = Arc::clone(&state);
        connections.spawn(async move {
            // A connection that either side breaks off is its end.
            let _ = pass(stream, &state).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut client: TcpStream, state: &State) -> std::io::Result<()> {
    let (head, rest) = read_head(&mut client).await?;
    let (line, fields) = head.split_once("\r\n").unwrap();
    let wanted = state.credentials.as_ref().map(|text| format!("Basic {}", STANDARD.encode(text)));
    let given = fields.lines().find_map(|field| {
        let (name, value) = field.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization").then_some(value)
    });
    if wanted.is_some() && wanted.as_deref() != given {
        *state.refused.lock().unwrap() += 1;
        return client.write_all(REFUSED.as_bytes()).await;
    }
    let (request, protocol) = line.rsplit_once(' ').unwrap();
    state.taken.lock().unwrap().push(request.to_owned());
    if let Some(target) = request.strip_prefix("CONNECT ") {
        let is_aws = target.ends_with(":443");
        let mut server = if is_aws {
            TcpStream::connect(state.aws).await?
        } else {
            TcpStream::connect(target).await?
        };
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        if is_aws {
            return both_ways(state.acceptor.accept(client).await?, &mut server).await;
        }
        return both_ways(client, &mut server).await;
    }
    // One request, in the form of its server.
    let (method, url) = request.split_once(' ').unwrap();
    let (authority, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut server = TcpStream::connect(authority).await?;
    let head = format!("{method} /{path} {protocol}\r\nConnection: close\r\n{fields}");
    server.write_all(head.as_bytes()).await?;
    server.write_all(&rest).await?;
    both_ways(client, &mut server).await
}

async fn both_ways<C>(mut client: C, server: &mut TcpStream) -> std::io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    copy_bidirectional(&mut client, server).await.map(|_| ())
}

/// Reads a head with the empty line, and what came behind it.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8(bytes).unwrap(), rest));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}
