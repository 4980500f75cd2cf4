//! `pillarbox dev`: the whole service on a built-in provider, with nothing to set up.

use std::fs::{self, File};
use std::future::pending;
use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tracing::{error, info, warn};

use crate::captured::Captured;
use crate::check::node_database;
use crate::error::TakenAddresses;
use crate::hand_over::HandedOver;
use crate::inherited;
use crate::run::{Ended, stop};
use crate::signals::{Signals, listen_for};
use crate::{Inherited, ListenerName, Service, ServiceError, listeners};
use pillarbox_admin::restart::ProgramCheck;
use pillarbox_admin::socket::BindError;
use pillarbox_body_store::ARENA_FORMAT;
use pillarbox_config::{self as config, Config};
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::event::EventDetail;
use pillarbox_domain::feed::{FeedChange, FeedEntry, FeedEventType, FeedTypes};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{DomainState, KeyRights};
use pillarbox_domain::webhook::{SigningSecret, Webhook, WebhookFormat, WebhookUrl};
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::credentials::Credentials;
use pillarbox_simulator::{EventOptions, Events, Options, SenderCheck, Simulator};
use pillarbox_store::{
    DATA_FORMAT, FeedPage, NewApiKey, NewWebhook, Store, StoreError, StoreOwner, WebhookAdded,
    create_directory,
};
use pillarbox_webhooks as webhooks;

const ORGANISATION: &str = StoreOwner::ORGANISATION_OF_DEV;
/// Number of events that are read at one time to be logged.
const EVENTS_AT_ONCE: usize = 100;
const DOMAIN: &str = "example.com";
/// The administration socket's name in the data directory.
const SOCKET: &str = "admin.sock";
/// Default port for SMTP submission.
const SMTP_PORT: u16 = 8587;
/// The port of the API in Resend's shape, if nothing else is said.
const RESEND_PORT: u16 = 8028;
/// Delay of the simulator's deliveries, to be watched by a person.
const EVENT_DELAY: Duration = Duration::from_secs(1);
/// The simulator's configuration set, and what it publishes: all that `aws setup` asks for.
const CONFIGURATION_SET: &str = "dev";
const EVENT_DESTINATION: &str = r#"{
    "EventDestinationName": "dev",
    "EventDestination": {
        "Enabled": true,
        "MatchingEventTypes":
            ["SEND", "REJECT", "BOUNCE", "COMPLAINT", "DELIVERY", "DELIVERY_DELAY"],
        "SnsDestination": { "TopicArn": "arn:aws:sns:eu-west-1:000000000000:dev" }
    }
}"#;
/// The simulator's own key pair; it opens nothing else.
const ACCESS_KEY: &str = "simulator";

/// Page for a browser that opens the clients' address. `{page}` is the place of the operators'
/// page.
const WELCOME: &str = include_str!("welcome.html");

/// Options of the command line.
#[derive(Debug, Clone)]
pub struct DevOptions {
    /// Address of the API, in place of the configuration's.
    pub listen: Option<SocketAddr>,
    /// Address of the operators' page, in place of the configuration's.
    pub operator_listen: Option<SocketAddr>,
    /// Directory of the data; a temporary one if it is not given.
    pub data_dir: Option<PathBuf>,
    /// The API key to use; a new one if it is not given.
    pub api_key: Option<ApiKey>,
    /// An endpoint that receives every event.
    pub webhook: Option<WebhookUrl>,
    /// Address of SMTP submission, in place of the configuration's.
    pub smtp_listen: Option<SocketAddr>,
    /// Address of the API in Resend's shape, in place of the configuration's.
    pub resend_listen: Option<SocketAddr>,
    /// Configuration for all other keys.
    pub config: Config,
}

/// Returns the facts that `dev --check` prints. The checks themselves are done before.
pub fn check_dev(options: &DevOptions) -> ProgramCheck {
    ProgramCheck {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_format: DATA_FORMAT,
        arena_format: ARENA_FORMAT,
        keeps_bodies: options.config.sending.keep_bodies == config::KeepBodies::Yes,
        database: node_database(&options.config),
        data_dir: options.data_dir.clone(),
    }
}

/// A data directory that is removed with everything in it when the process ends in order.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> io::Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("pillarbox-dev-").tempdir()?.keep()))
    }

    /// Leaves it to the program that is handed the result.
    fn leave(self) -> io::Result<File> {
        let opened = File::open(&self.0);
        if opened.is_ok() {
            std::mem::forget(self);
        }
        opened
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            warn!(path = %self.0.display(), %error, "the temporary directory could not be removed");
        }
    }
}

/// Runs the service on its own simulator until SIGTERM or SIGINT, or until a restart is asked for.
pub async fn dev(options: DevOptions, mut inherited: Inherited) -> Result<Ended, ServiceError> {
    let mut signals = Signals::new()?;
    require_free_addresses(&options, &inherited)?;
    let failed = |source| ServiceError::System { what: "cannot make the data directory", source };
    let temporary = match (&options.data_dir, inherited.own.directory.take()) {
        (Some(_), _) => None,
        (None, Some(directory)) => Some(TemporaryDirectory(directory)),
        (None, None) => Some(TemporaryDirectory::new().map_err(|source| {
            let what = "cannot make a temporary directory; give another directory with --data-dir";
            ServiceError::System { what, source }
        })?),
    };
    let data_dir = match (&options.data_dir, &temporary) {
        (Some(directory), _) => directory.clone(),
        (None, Some(directory)) => directory.0.clone(),
        (None, None) => unreachable!("one of the two is there"),
    };
    create_directory(&data_dir).map_err(failed)?;
    let simulator = start_simulator().await?;
    let config = configure(&options, &data_dir, &simulator);
    let secret = SecretString::from(ACCESS_KEY);
    let credentials = Credentials::fixed(ACCESS_KEY, secret);
    let is_to_stop = inherited.own.is_to_stop;
    let clock = Clock::system();
    let service = Service::start_as(StoreOwner::Dev, &config, clock, credentials, inherited).await;
    let service = service.map_err(|error| match error {
        ServiceError::Socket(BindError::InUse { .. }) => ServiceError::DirectoryInUse { data_dir },
        error => error,
    })?;
    let tests = service.dispatcher.provider().simulated().captured();
    // A new simulator knows nothing of domains that were added before.
    for domain in service.store().domains() {
        simulator.verify(&domain.name);
    }
    let captured = Captured::of_dev(simulator.captured_mail(), tests);
    service.operators.show_caught(Arc::new(captured));
    service.show_welcome(WELCOME.replace("{page}", page_without_key(&service)));
    let key = match options.api_key {
        Some(key) => key,
        None => ApiKey::generate()?,
    };
    provision(service.store(), &key).await.map_err(|error| ServiceError::System {
        what: "cannot set up the organisation",
        source: io::Error::other(error),
    })?;
    let webhook = match options.webhook {
        Some(url) => Some(add_webhook(service.store(), url).await?),
        None => None,
    };
    print_welcome(&service, &config, &key, &simulator, webhook.as_ref());
    let mut hangup = listen_for(SignalKind::hangup())?;
    let restarts = tokio::select! {
        () = async {}, if is_to_stop => false,
        () = signals.next() => false,
        () = log_events(service.store()) => false,
        // The terminal was closed.
        _ = hangup.recv() => false,
        () = service.restart_asked() => true,
    };
    let ended = if restarts {
        match service.hand_over(&mut signals).await {
            HandedOver::To(mut next) => {
                match temporary.map(TemporaryDirectory::leave) {
                    None => {}
                    Some(Ok(directory)) => next.add_own(inherited::DIRECTORY, directory.into()),
                    Some(Err(error)) => error!(%error, "the data directory is not handed over"),
                }
                Ended::Restart(next)
            }
            HandedOver::Stopping(service) => {
                Ended::Stopped(stop(*service, signals, || drop(temporary)).await)
            }
        }
    } else {
        Ended::Stopped(stop(service, signals, || drop(temporary)).await)
    };
    // The service has stopped, and it was the only client of the simulator.
    drop(simulator);
    Ok(ended)
}

/// Logs each delivery, bounce and complaint of the organisation for as long as it is polled.
async fn log_events(store: &Store) {
    let name = ORGANISATION.parse().expect("a valid name");
    let Some(organisation) = store.organisation(&name) else { return pending().await };
    let types = [FeedEventType::Delivery, FeedEventType::Bounce, FeedEventType::Complaint];
    let types = FeedTypes::from_iter(types);
    let mut grew = store.feed_grew();
    let mut after = store.feed_end(organisation.id);
    while grew.changed().await.is_ok() {
        loop {
            let now = Clock::system().now();
            let page = store.feed(organisation.id, after, types, EVENTS_AT_ONCE, now).await;
            // A read error is logged by the reader, and the event is still there the next time.
            let Ok(FeedPage { entries, next }) = page else { break };
            entries.iter().for_each(log_event);
            after = next;
            if entries.is_empty() {
                break;
            }
        }
    }
    pending::<()>().await;
}

fn log_event(entry: &FeedEntry) {
    let FeedChange::Observed(event) = &entry.change else { return };
    let id = entry.message.id;
    match &event.detail {
        EventDetail::Bounce { bounce_type, sub_type, .. } => {
            let bounce_type = bounce_type.as_str();
            info!(target: "pillarbox::message", %id, bounce_type, sub_type, "bounce");
        }
        EventDetail::Complaint { feedback_type, .. } => {
            info!(target: "pillarbox::message", %id, feedback_type, "complaint");
        }
        EventDetail::Delivery { .. } => info!(target: "pillarbox::message", %id, "delivery"),
        EventDetail::Reject { .. } | EventDetail::DeliveryDelay { .. } => {}
    }
}

async fn start_simulator() -> Result<Simulator, ServiceError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = ListenerName::SimulatorOfDev;
    let failed = |source| ServiceError::Listen { listener, address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let events = Events::On(EventOptions::after(EVENT_DELAY));
    let options = Options {
        verified: vec![DOMAIN.to_owned()],
        configuration_sets: vec![CONFIGURATION_SET.to_owned()],
        // The service knows which domains may send, those that are assumed to be verified as well.
        sender_check: SenderCheck::Anyone,
        events,
        ..Options::default()
    };
    let simulator = Simulator::start(listener, options).await;
    let created = simulator.create_event_destination(CONFIGURATION_SET, EVENT_DESTINATION);
    created.expect("the definition is valid");
    Ok(simulator)
}

/// The configuration, on the simulator for all that it says of SES, and with its socket among its
/// own data.
fn configure(options: &DevOptions, data_dir: &Path, simulator: &Simulator) -> Config {
    let mut config = with_addresses(options);
    if config.smtp == config::Smtp::default() {
        config.smtp.listen = Some(free_address(SMTP_PORT));
    }
    config.resend_listen = config.resend_listen.or_else(|| Some(free_address(RESEND_PORT)));
    let wanted = config.max_connections;
    if wanted == Config::default().max_connections {
        // No caller needs so many, and a trial needs less.
        let in_flight = config.sending.max_in_flight;
        config.max_connections = listeners::quiet_room_for_clients(wanted, in_flight);
    }
    data_dir.clone_into(&mut config.data_dir);
    config.admin_socket = data_dir.join(SOCKET);
    // First all of it: no key of the configuration may lead to SES.
    config.ses = Config::default().ses;
    config.ses.region = Options::default().region;
    config.ses.endpoint =
        Some(simulator.endpoint().parse().expect("the simulator's address is a URL"));
    config.ses.configuration_set = Some(CONFIGURATION_SET.to_owned());
    let queue_url = simulator.queue_url().parse().expect("the queue's address is a URL");
    config.ses.events = config::Events { queue_url: Some(queue_url) };
    config
}

/// The configuration with the addresses of the command line.
fn with_addresses(options: &DevOptions) -> Config {
    let mut config = options.config.clone();
    config.listen = options.listen.unwrap_or(config.listen);
    config.operator_listen = options.operator_listen.unwrap_or(config.operator_listen);
    config.smtp.listen = options.smtp_listen.or(config.smtp.listen);
    config.resend_listen = options.resend_listen.or(config.resend_listen);
    config
}

/// Refuses if other processes listen on addresses that are needed, and names all of them: a second
/// `dev` meets more than one. Addresses that the program before had bound are ours.
fn require_free_addresses(options: &DevOptions, inherited: &Inherited) -> Result<(), ServiceError> {
    let own = &inherited.own;
    let own = [&own.clients, &own.operators, &own.smtp, &own.resend].into_iter().flatten();
    let own: Vec<_> = own.filter_map(|listener| listener.local_addr().ok()).collect();
    let config = with_addresses(options);
    let needed = [
        (ListenerName::Clients, Some(config.listen)),
        (ListenerName::Operators, Some(config.operator_listen)),
        (ListenerName::Smtp, config.smtp.listen),
        (ListenerName::Resend, config.resend_listen),
    ];
    let is_taken = |address| {
        let bound = std::net::TcpListener::bind(address);
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    let needed = needed.into_iter().filter_map(|(name, address)| Some((name, address?)));
    let needed = needed.filter(|(_, address)| !own.contains(address));
    let taken: Vec<_> = needed.filter(|(_, address)| is_taken(*address)).collect();
    if taken.is_empty() { Ok(()) } else { Err(ServiceError::Taken(TakenAddresses(taken))) }
}

/// The usual port of this machine alone, or a free one while another process has that.
fn free_address(port: u16) -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match std::net::TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

/// Adds the organisation, its domain and the key, as far as they are not there from before.
async fn provision(store: &Store, key: &ApiKey) -> Result<(), StoreError> {
    let now = Clock::system().now();
    let name = ORGANISATION.parse().expect("a valid name");
    let organisation = match store.organisation(&name) {
        Some(organisation) => organisation,
        None => store.add_organisation(name).await?.expect("the name was free"),
    };
    let domain = DomainName::parse(DOMAIN).expect("a valid domain");
    store.put_domain(organisation.id, domain, DomainState::Assumed, now).await?;
    if store.authenticate(&key.hash(), now).is_none() {
        let key = NewApiKey {
            label: "dev".to_owned(),
            expires_at: None,
            hash: key.hash(),
            rights: KeyRights::all(),
        };
        store.add_api_key(organisation.id, key, now).await?;
    }
    Ok(())
}

/// Adds an endpoint, unless it is there from before.
async fn add_webhook(store: &Store, url: WebhookUrl) -> Result<Webhook, ServiceError> {
    if let Some(known) = store.webhooks().into_iter().find(|known| known.url == url) {
        return Ok(known);
    }
    let failed = |source| ServiceError::System { what: "cannot add the endpoint", source };
    webhooks::check(&url, None).map_err(|error| failed(io::Error::other(error)))?;
    let secret = SigningSecret::generate()?;
    let new = NewWebhook {
        url,
        types: FeedTypes::ALL,
        format: WebhookFormat::Standard,
        authority: None,
        secret,
    };
    let name = ORGANISATION.parse().expect("a valid name");
    let organisation = store.organisation(&name).expect("it was provisioned");
    let added = store.add_webhook(organisation.id, new, Clock::system().now()).await;
    match added.map_err(|error| failed(io::Error::other(error)))? {
        WebhookAdded::Added(webhook) => Ok(*webhook),
        WebhookAdded::NoOrganisation | WebhookAdded::TooMany => {
            let reason = "there are too many endpoints; remove one: pillarbox webhook remove ID";
            Err(failed(io::Error::other(reason)))
        }
    }
}

fn print_welcome(
    service: &Service,
    config: &Config,
    key: &ApiKey,
    simulator: &Simulator,
    webhook: Option<&Webhook>,
) {
    let address = service.address();
    // The names in a certificate hardly ever include this address.
    let (scheme, options) =
        if config.tls.is_some() { ("https", "-sS --insecure") } else { ("http", "-sS") };
    let page = service.page().expose_secret();
    let key = key.reveal();
    let commands = commands(&config.data_dir);
    let smtp: Vec<_> = service.smtp_addresses().iter().map(ToString::to_string).collect();
    let smtp_line = smtp.first().map_or_else(String::new, |smtp| smtp_line(smtp, config, key));
    let smtp = smtp.join(", ");
    let resend = service
        .resend_address()
        .map_or_else(String::new, |resend| format!("\n  Resend    {scheme}://{resend}"));
    let webhook = webhook.map_or_else(String::new, |webhook| {
        format!("\n  webhook   {}\n  secret    {}", webhook.url.as_str(), webhook.secret.reveal())
    });
    // The reader may have closed the pipe: that is no reason to stop.
    let _ = writeln!(
        io::stdout(),
        "\
pillarbox is running on a simulator: nothing leaves this machine.

  address   {scheme}://{address}
  SMTP      {smtp}{resend}
  API key   {key}
  page      {page}
  data      {}
  captured  {}/simulator/messages{webhook}

Send a message:

curl {options} {scheme}://{address}/emails -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
-d '{{\"from\":\"Dev <dev@{DOMAIN}>\",\"to\":[\"success@simulator.amazonses.com\"],\"subject\":\"Hello\",\"text\":\"It works.\"}}'

The same over SMTP (any user name; the API key is the password):

{smtp_line}

Read it back, with the id from the answer in place of ID:

curl {options} {scheme}://{address}/emails/ID -H 'Authorization: Bearer {key}'

Other recipients at simulator.amazonses.com show what else may happen:

  bounce@           the message bounces, and the address becomes suppressed
  complaint@        the recipient complains, and the address becomes suppressed
  ooto@             the message is delivered; at SES, an out-of-office reply would follow
  suppressionlist@  the message bounces, because SES's own list has the address

Commands for this service, in another terminal:

{commands}

Messages as they move (Ctrl-C stops pillarbox):",
        config.data_dir.display(),
        simulator.endpoint(),
    );
}

/// The operators' page, as a link that opens nothing by itself: its key stays in the terminal.
fn page_without_key(service: &Service) -> &str {
    let page = service.page().expose_secret();
    page.split_once('#').map_or(page, |(page, _)| page)
}

/// Commands that reach this service when they are pasted, as all commands do from there on.
fn commands(data_dir: &Path) -> String {
    // Another terminal may stand elsewhere.
    let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let mut text = String::new();
    // A program that was called by its path is not among those that the shell finds.
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    if called.components().count() > 1
        && let Ok(program) = std::env::current_exe()
        && let Some(directory) = program.parent()
    {
        text = format!("export PATH={}:\"$PATH\"\n", shell_word(directory));
    }
    format!(
        "{text}export PILLARBOX_ADMIN_SOCKET={}\nexport PILLARBOX_DATA_DIR={}\npillarbox status\n\
         pillarbox message list",
        shell_word(&data_dir.join(SOCKET)),
        shell_word(&data_dir),
    )
}

/// The path as one word of a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// A line that sends a message over SMTP, at the first of the listeners, when it is pasted.
fn smtp_line(address: &str, config: &Config, key: &str) -> String {
    let (scheme, options) = match (&config.tls, config.smtp.listen) {
        (None, _) => ("smtp", "-s"),
        (Some(_), Some(_)) => ("smtp", "-s --ssl-reqd --insecure"),
        (Some(_), None) => ("smtps", "-s --insecure"),
    };
    let recipient = "success@simulator.amazonses.com";
    format!(
        "printf 'From: Dev <dev@{DOMAIN}>\\nTo: {recipient}\\nSubject: Hello\\n\\nIt works.\\n' | curl \
         {options} {scheme}://{address} --user 'dev:{key}' --mail-from dev@{DOMAIN} --mail-rcpt {recipient} --crlf \
         --upload-file -"
    )
}
