//! A session: commands in their order, and a reply to each (RFC 5321, section 4.1.4).
//!
//! Accepts nothing by itself: `submission` does. Nothing of a session outlives STARTTLS but the
//! stream.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::server::TlsStream;

use crate::command::{Command, CommandError, Mechanism};
use crate::connection::{Connection, Failure, Skipped};
use crate::reply::Reply;
use crate::submission::{Announced, sender_forbidden, submit, unverified};
use crate::{Security, Shared};
use pillarbox_domain::admission::Facts as _;
use pillarbox_domain::api_key::{ApiKey, ApiKeyHash};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::limits::MAX_RECIPIENTS;
use pillarbox_domain::mailbox::{Address, MailboxError};
use pillarbox_domain::organisation::Scope;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_http::LINGER_FOR_ROOM;
use pillarbox_http::connections::{Activity, ClientConnection};
use pillarbox_http::drain::{DrainPhase, DrainSignal};
use pillarbox_http::rejection::Rejection;
use pillarbox_http::tls::Tls;
use pillarbox_runtime::shared_limits::Reservation;
use pillarbox_store::Client;

/// Longest time from connecting to a successful AUTH.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a command after that (RFC 5321, section 4.5.3.2.7).
const COMMAND_TIMEOUT: Duration = Duration::from_mins(5);
/// Wrong commands after which a session ends.
const MAX_ERRORS: usize = 20;
/// Wrong passwords after which a session ends.
const MAX_WRONG_KEYS: usize = 3;

/// Serves a connection until it is closed.
pub(super) async fn serve(
    stream: TcpStream,
    client: ClientConnection,
    security: Security,
    shared: Arc<Shared>,
    drain: DrainSignal,
) {
    let login_by = Instant::now() + LOGIN_TIMEOUT;
    let whose = (&client, login_by);
    let (tls, stream, greeting) = match security {
        Security::None => {
            let session = Session::new(stream, Channel::Loopback, shared, drain, whose);
            session.run(Greeting::Due).await;
            return;
        }
        Security::StartTls(tls) => {
            let (shared, drain) = (Arc::clone(&shared), drain.clone());
            let session = Session::new(stream, Channel::BeforeTls, shared, drain, whose);
            let Some(stream) = session.run(Greeting::Due).await else { return };
            // The client has been greeted, and says EHLO again (RFC 3207, section 4.2).
            client.enter(Activity::Handshake);
            (tls, stream, Greeting::Said)
        }
        Security::Tls(tls) => (tls, stream, Greeting::Due),
    };
    let handshake = tokio::select! {
        biased;
        stream = handshake(&tls, stream, login_by) => stream,
        () = client.told() => None,
    };
    if let Some(stream) = handshake {
        if greeting == Greeting::Said {
            client.enter(Activity::Incomplete);
        }
        Session::new(stream, Channel::Encrypted, shared, drain, whose).run(greeting).await;
    }
}

async fn handshake(
    tls: &Tls,
    stream: TcpStream,
    login_by: Instant,
) -> Option<TlsStream<TcpStream>> {
    match timeout_at(login_by, tls.smtp_acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake over SMTP failed");
            None
        }
        Err(_) => None,
    }
}

/// Choice whether the server greets first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Greeting {
    Due,
    Said,
}

/// Readers that the connection may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    /// Readers on this machine only.
    Loopback,
    /// Anybody, until STARTTLS.
    BeforeTls,
    /// No readers.
    Encrypted,
}

/// Introduction of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hello {
    None,
    Helo,
    Ehlo,
}

struct Session<'c, S> {
    connection: Connection<S>,
    /// Its place among the client connections.
    client: &'c ClientConnection,
    channel: Channel,
    shared: Arc<Shared>,
    drain: DrainSignal,
    login_by: Instant,
    hello: Hello,
    /// The key that the client authenticated with. It is checked again for each command, because it
    /// may be revoked meanwhile.
    key: Option<ApiKeyHash>,
    /// The connection, counted as the organisation's of that key.
    counted: Option<Reservation<OrganisationId>>,
    /// The message that is being announced, from MAIL to DATA.
    announced: Option<Announced>,
    errors: usize,
    wrong_keys: usize,
    /// Bytes of a command have come.
    has_begun: bool,
    /// A command was refused because the client has no valid key.
    lacks_key: bool,
}

/// Next step after a command.
enum Next {
    Command,
    Handshake,
}

/// Reason why a session ends.
enum End {
    /// This is the last reply.
    Reply(Reply),
    /// The last reply was said.
    Said,
    /// The client has disconnected.
    Gone,
}

impl<'c, S: AsyncRead + AsyncWrite + Unpin + Send> Session<'c, S> {
    fn new(
        stream: S,
        channel: Channel,
        shared: Arc<Shared>,
        drain: DrainSignal,
        (client, login_by): (&'c ClientConnection, Instant),
    ) -> Self {
        Self {
            connection: Connection::new(stream),
            client,
            channel,
            shared,
            drain,
            login_by,
            hello: Hello::None,
            key: None,
            counted: None,
            announced: None,
            errors: 0,
            wrong_keys: 0,
            has_begun: false,
            lacks_key: false,
        }
    }

    /// Serves the client until it is to speak TLS; then the stream comes back.
    async fn run(mut self, greeting: Greeting) -> Option<S> {
        match self.serve(greeting).await {
            Ok(()) => return Some(self.connection.into_stream()),
            Err(End::Reply(reply)) => {
                self.say(&reply);
                self.end().await;
            }
            Err(End::Said) => self.end().await,
            Err(End::Gone) => {}
        }
        None
    }

    /// Writes the last replies and closes the connection.
    async fn end(mut self) {
        let client = self.client;
        let is_told = client.is_told();
        if !is_told {
            client.enter(Activity::Ending);
        }
        let linger = if is_told { LINGER_FOR_ROOM } else { self.shared.limits.linger };
        let close = async {
            if self.flush().await.is_ok() {
                self.connection.close(linger).await;
            }
        };
        tokio::select! {
            () = close => {}
            () = client.told(), if !is_told => {}
        }
    }

    /// Obeys commands until the client is to speak TLS.
    async fn serve(&mut self, greeting: Greeting) -> Result<(), End> {
        if greeting == Greeting::Due {
            if self.drain.phase() != DrainPhase::Serving {
                return Err(End::Reply(Reply::STOPPING));
            }
            self.say(&Reply::GREETING);
        }
        loop {
            let line = self.next_line().await?;
            let begun = self.key.map(|_| self.client.begin_request());
            let next = self.obey(&line).await?;
            match (begun, self.key) {
                (Some(begun), Some(_)) => self.client.answered(begun),
                (None, Some(_)) => self.client.enter(Activity::Idle),
                (Some(_), None) => self.client.enter(Activity::Incomplete),
                (None, None) => {}
            }
            match next {
                Next::Command if self.lacks_key && self.client.ends_without_key() => {
                    return Err(End::Said);
                }
                Next::Command if self.errors > MAX_ERRORS => {
                    return Err(End::Reply(Reply::TOO_MANY_ERRORS));
                }
                Next::Command => {}
                Next::Handshake => {
                    // Bytes that came with the command go with the old connection's: they may be
                    // somebody else's (CVE-2021-38371 and its kin).
                    return self.flush().await;
                }
            }
        }
    }

    /// The next line. Replies are written before it is waited for.
    async fn next_line(&mut self) -> Result<BytesMut, End> {
        let deadline = match self.key {
            Some(_) => Instant::now() + COMMAND_TIMEOUT,
            None => self.login_by,
        };
        loop {
            match self.connection.line() {
                Ok(Some(line)) => return Ok(line),
                Ok(None) => {}
                Err(_) => return Err(End::Reply(Reply::NOT_A_LINE)),
            }
            self.flush().await?;
            tokio::select! {
                biased;
                () = self.drain.left(DrainPhase::Serving) => {
                    return Err(End::Reply(Reply::STOPPING));
                }
                read = timeout_at(deadline, self.connection.read_more()) => match read {
                    Ok(Ok(1..)) => self.note_bytes(),
                    Ok(Ok(0) | Err(_)) => return Err(End::Gone),
                    Err(_) => return Err(End::Reply(Reply::TIMED_OUT)),
                },
                // What has come by then is read before.
                () = self.client.told() => {
                    return Err(End::Reply(Reply::TOO_MANY_CONNECTIONS));
                }
            }
        }
    }

    /// Notes that bytes of a command have come. A request that a client without a key has begun is
    /// complete once it has one.
    fn note_bytes(&mut self) {
        if self.key.is_some() || !self.has_begun {
            self.client.enter(Activity::Incomplete);
        }
        self.has_begun = true;
    }

    async fn flush(&mut self) -> Result<(), End> {
        let patience = self.shared.limits.write_timeout;
        self.connection.flush(patience).await.map_err(|_| End::Gone)
    }

    /// Adds a reply to those that are written next.
    fn say(&mut self, reply: &Reply) {
        if reply.is_refusal() {
            self.shared.metrics.refuse(reply.codes());
            if self.shared.refusals.has_room() {
                let client = client_of(&self.shared, self.key);
                let organisation = client.map(|client| client.organisation.name.to_string());
                tracing::info!(organisation, code = reply.codes(), "refused over SMTP");
            }
        }
        if reply.is_clients_error() {
            self.errors += 1;
        }
        self.connection.put(reply);
    }

    async fn obey(&mut self, line: &[u8]) -> Result<Next, End> {
        let command = Command::parse(line);
        let client = client_of(&self.shared, self.key);
        if self.key.is_some() && client.is_none() && command != Ok(Command::Quit) {
            return Err(End::Reply(Reply::KEY_ENDED));
        }
        if client.is_some() {
            self.client.accept_key();
        }
        let reply = match command {
            Ok(Command::Ehlo) => {
                (self.hello, self.announced) = (Hello::Ehlo, None);
                self.say_extensions();
                return Ok(Next::Command);
            }
            Ok(Command::Helo) => {
                (self.hello, self.announced) = (Hello::Helo, None);
                Reply::HELLO
            }
            Ok(Command::StartTls) if self.channel == Channel::BeforeTls => {
                self.say(&Reply::START_TLS);
                return Ok(Next::Handshake);
            }
            Ok(Command::StartTls) => Reply::SEQUENCE,
            Ok(Command::Auth { mechanism, initial }) => {
                self.authenticate(mechanism, initial).await?
            }
            Ok(Command::Mail { sender, size }) => self.mail(client, sender, size)?,
            Ok(Command::Rcpt(recipient)) => self.rcpt(client, recipient).await,
            Ok(Command::Data) => self.data(client).await?,
            Ok(Command::Reset) => {
                self.announced = None;
                Reply::OK
            }
            Ok(Command::Noop) => Reply::OK,
            Ok(Command::Verify) => Reply::NOT_VERIFIED_HERE,
            Ok(Command::Quit) => return Err(End::Reply(Reply::BYE)),
            Err(CommandError::Unknown) => Reply::UNKNOWN,
            Err(CommandError::NotImplemented) => Reply::NOT_IMPLEMENTED,
            Err(CommandError::Arguments) => Reply::ARGUMENTS,
            Err(CommandError::Parameter) => Reply::PARAMETER,
            Err(CommandError::Mechanism) => Reply::MECHANISM,
        };
        self.say(&reply);
        Ok(Next::Command)
    }

    fn say_extensions(&mut self) {
        let connection = &mut self.connection;
        connection.put_line("250-pillarbox");
        connection.put_line(&format!("250-SIZE {}", self.shared.max_message_bytes));
        connection.put_line("250-8BITMIME");
        connection.put_line("250-PIPELINING");
        connection.put_line(match self.channel {
            Channel::BeforeTls => "250-STARTTLS",
            Channel::Loopback | Channel::Encrypted => "250-AUTH PLAIN LOGIN",
        });
        connection.put_line("250 ENHANCEDSTATUSCODES");
    }

    async fn authenticate(
        &mut self,
        mechanism: Mechanism,
        initial: Option<&str>,
    ) -> Result<Reply, End> {
        if self.channel == Channel::BeforeTls {
            return Ok(Reply::ENCRYPT_FIRST);
        }
        if self.hello != Hello::Ehlo || self.key.is_some() {
            return Ok(Reply::SEQUENCE);
        }
        // AUTH ends a group of commands (RFC 4954, section 4).
        if self.connection.has_unread() {
            return Ok(Reply::PIPELINED);
        }
        let response = match mechanism {
            Mechanism::Plain => self.response(initial, &Reply::GO_ON).await?,
            Mechanism::Login => match self.response(initial, &Reply::ASK_USER).await? {
                Response::Bytes(_) => self.response(None, &Reply::ASK_PASSWORD).await?,
                other => other,
            },
        };
        let response = match response {
            Response::Bytes(response) => response,
            Response::Cancelled => return Ok(Reply::CANCELLED),
            Response::Malformed => return Ok(Reply::ARGUMENTS),
        };
        let password = match mechanism {
            // An identity to act for, a user name and the password (RFC 4616, section 2). The key
            // says who the client is.
            Mechanism::Plain => response.splitn(3, |byte| *byte == 0).nth(2),
            Mechanism::Login => Some(response.as_slice()),
        };
        let key = password
            .and_then(|password| std::str::from_utf8(password).ok())
            .and_then(|password| ApiKey::parse(password).ok())
            .map(|key| key.hash());
        let now = self.shared.clock.now();
        let client = key.and_then(|key| self.shared.store.authenticate(&key, now));
        if let Some(Client { organisation, .. }) = client {
            // Idle sessions of one organisation must not keep out the others.
            let counted = self.shared.connections.reserve(organisation.id, 1);
            self.counted = Some(counted.map_err(|_| End::Reply(Reply::TOO_MANY_CONNECTIONS))?);
            (self.key, self.lacks_key) = (key, false);
            self.client.accept_key();
            return Ok(Reply::AUTHENTICATED);
        }
        self.wrong_keys += 1;
        self.lacks_key = true;
        if self.wrong_keys >= MAX_WRONG_KEYS {
            return Err(End::Reply(Reply::BAD_KEY));
        }
        Ok(Reply::BAD_KEY)
    }

    /// The client's response: the initial one, or that to a prompt.
    async fn response(&mut self, initial: Option<&str>, prompt: &Reply) -> Result<Response, End> {
        let decoded = if let Some(initial) = initial {
            STANDARD.decode(initial)
        } else {
            self.say(prompt);
            let line = self.next_line().await?;
            if &*line == b"*" {
                return Ok(Response::Cancelled);
            }
            STANDARD.decode(&line)
        };
        Ok(decoded.map_or(Response::Malformed, Response::Bytes))
    }

    /// Reply that asks a client without a valid key for the first step.
    fn before_all(&mut self) -> Reply {
        self.lacks_key = true;
        match self.channel {
            Channel::BeforeTls => Reply::START_TLS_FIRST,
            Channel::Loopback | Channel::Encrypted => Reply::AUTHENTICATE_FIRST,
        }
    }

    fn mail(
        &mut self,
        client: Option<Client>,
        sender: Option<&str>,
        size: Option<u64>,
    ) -> Result<Reply, End> {
        let Some(Client { organisation, rights, .. }) = client else {
            return Ok(self.before_all());
        };
        if !rights.scopes.contains(&Scope::Send) {
            return Ok(Reply::MAY_NOT_SEND);
        }
        if self.shared.intake.refuses_new() {
            return Err(End::Reply(Reply::STOPPING));
        }
        if self.hello == Hello::None || self.announced.is_some() {
            return Ok(Reply::SEQUENCE);
        }
        if size.is_some_and(|size| size > self.shared.max_message_bytes as u64) {
            return Ok(Reply::TOO_LARGE);
        }
        let mut announced = Announced::default();
        if let Some(sender) = sender {
            let address = match Address::parse(sender) {
                Ok(address) => address,
                Err(error) => return Ok(not_an_address("501 5.1.7", "sender", error)),
            };
            if !self.shared.store.facts(organisation.id).is_verified(address.domain()) {
                return Ok(unverified(address.domain().as_str()));
            }
            if !rights.allow_sender(address.domain().as_str()) {
                return Ok(sender_forbidden(address.domain().as_str()));
            }
            announced.sender_domain = Some(address.domain().clone().into_owned());
        }
        self.announced = Some(announced);
        Ok(Reply::SENDER_OK)
    }

    async fn rcpt(&mut self, client: Option<Client>, recipient: &str) -> Reply {
        let Some(Client { organisation, .. }) = client else { return self.before_all() };
        let Some(Announced { recipients, .. }) = &mut self.announced else {
            return Reply::SEQUENCE;
        };
        if recipients.len() >= MAX_RECIPIENTS {
            return Reply::TOO_MANY_RECIPIENTS;
        }
        let address = match Address::parse(recipient) {
            Ok(address) => address,
            Err(error) => return not_an_address("501 5.1.3", "recipient", error),
        };
        let address = SuppressedAddress::from(&address);
        match self.shared.store.is_suppressed(organisation.id, &address).await {
            Ok(false) => {
                recipients.push(recipient.to_owned());
                Reply::RECIPIENT_OK
            }
            Ok(true) => Reply::SUPPRESSED,
            Err(_) => Reply::STORAGE_UNAVAILABLE,
        }
    }

    async fn data(&mut self, client: Option<Client>) -> Result<Reply, End> {
        let Some(Client { organisation, key, .. }) = client else { return Ok(self.before_all()) };
        let announced = match self.announced.take() {
            None => return Ok(Reply::SEQUENCE),
            Some(announced) if announced.recipients.is_empty() => {
                self.announced = Some(announced);
                return Ok(Reply::NO_RECIPIENTS);
            }
            Some(announced) => announced,
        };
        self.say(&Reply::SEND_DATA);
        self.flush().await?;
        let mut body = self.connection.message();
        let rejection = match self.shared.bodies.read(organisation.id, &mut body).await {
            // Before anything is said of the message.
            Ok(_) if client_of(&self.shared, self.key).is_none() => {
                return Err(End::Reply(Reply::KEY_ENDED));
            }
            Ok(message) => {
                let reply = submit(&self.shared, (&organisation, key), announced, message).await;
                let is_last = [Reply::STOPPING, Reply::KEY_ENDED].contains(&reply);
                return if is_last { Err(End::Reply(reply)) } else { Ok(reply) };
            }
            Err(rejection) => rejection,
        };
        if let Some(failure) = body.failure() {
            return Err(End::from(failure));
        }
        let reply = match rejection {
            Rejection::PayloadTooLarge { .. } => Reply::TOO_LARGE,
            Rejection::MemoryFull { .. } => Reply::QUEUE_FULL,
            Rejection::RequestTimeout => return Err(End::Reply(Reply::TIMED_OUT)),
            Rejection::BadRequest { .. }
            | Rejection::Unauthorized
            | Rejection::ForeignHost
            | Rejection::NotFound
            | Rejection::UnknownPath { .. }
            | Rejection::MethodNotAllowed { .. }
            | Rejection::UriTooLong
            | Rejection::HeadersTooLarge
            | Rejection::Internal
            | Rejection::ShuttingDown
            | Rejection::TooManyConnections => Reply::STORAGE_UNAVAILABLE,
        };
        match body.skip(self.shared.limits.linger).await {
            Skipped::ToItsEnd => Ok(reply),
            Skipped::TooLong => Err(End::Reply(reply)),
            Skipped::Failed(failure) => Err(End::from(failure)),
        }
    }
}

/// The client of the key that was given, as long as the key is valid.
fn client_of(shared: &Shared, key: Option<ApiKeyHash>) -> Option<Client> {
    shared.store.authenticate(&key?, shared.clock.now())
}

/// The reply to an address of the envelope that is none; `whose` it is.
fn not_an_address(codes: &str, whose: &str, error: MailboxError) -> Reply {
    Reply::new(codes, &format!("the {whose} is not a valid address: {error}"))
}

/// A client's response to a challenge.
enum Response {
    Bytes(Vec<u8>),
    Cancelled,
    /// It is not base64.
    Malformed,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Line => Self::Reply(Reply::NOT_A_LINE),
            Failure::Gone => Self::Gone,
        }
    }
}
