//! Services, stores and clients of the provider within the test's own process.
//!
//! Must not know the binary.

use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pillarbox_config::{Config, TrackingOverride};
use pillarbox_domain::admission::admit;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{DomainState, KeyRights};
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;
use pillarbox_service::{Inherited, Service, ServiceError};
use pillarbox_ses::credentials::Credentials;
use pillarbox_ses::{SesClient, SesOptions};
use pillarbox_simulator::{Options, Simulator};
use pillarbox_store::{Accepted, NewApiKey, NewMessage, Store};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{answer, message_with};
use super::{http_client, start_simulator};

/// The time at which manual clocks start.
pub(crate) const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

/// The service within the test's own process, on a manual clock, with the organisation `acme`.
pub(crate) struct LocalService {
    pub(crate) service: Service,
    pub(crate) simulator: Simulator,
    pub(crate) clock: Clock,
    pub(crate) key: ApiKey,
    pub(crate) client: reqwest::Client,
    pub(crate) directory: TempDir,
}

impl LocalService {
    /// Starts it with these options of the simulator and a changed configuration.
    pub(crate) async fn start(
        options: Options,
        change: impl FnOnce(&mut Config, &Simulator),
    ) -> Self {
        let verified = vec!["example.com".to_owned()];
        let options = Options { verified, signature_max_age: None, ..options };
        let simulator = start_simulator(options).await;
        let directory = tempfile::tempdir().unwrap();
        let mut config = local_config(directory.path(), &simulator);
        change(&mut config, &simulator);
        let clock = Clock::manual(NOON);
        let service = start_service(&config, clock.clone()).await.unwrap();
        let acme = add_organisation(service.store(), "acme", NOON).await;
        let key = add_api_key(service.store(), acme, NOON).await;
        Self { service, simulator, clock, key, client: http_client(), directory }
    }
}

/// Starts a service with the credentials that the simulator takes.
pub(crate) async fn start_service(config: &Config, clock: Clock) -> Result<Service, ServiceError> {
    let credentials = Credentials::fixed("simulator", SecretString::from("simulator"));
    Service::start(config, clock, credentials, Inherited::default()).await
}

/// The configuration of a service in this directory, on free ports.
pub(crate) fn local_config(directory: &Path, simulator: &Simulator) -> Config {
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        operator_listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: directory.join("data"),
        admin_socket: directory.join("admin.sock"),
        ..Config::default()
    };
    config.ses.endpoint = Some(simulator.endpoint().parse().unwrap());
    config
}

/// Sends a message with this idempotency key, which must be accepted; gives its id, and whether it
/// is a replay.
pub(crate) async fn send_with_key(
    client: &reqwest::Client,
    service: &Service,
    key: &ApiKey,
    idempotency_key: &str,
) -> (String, bool) {
    let body = message_with("idempotencyKey", json!(idempotency_key)).to_string();
    let request = client.post(format!("http://{}/emails", service.address()));
    let request = request.bearer_auth(key.reveal());
    let request = request.header("content-type", "application/json").body(body);
    let response = request.send().await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let (status, body) = answer(response).await;
    assert_eq!(status, 200, "{body}");
    (body["id"].as_str().unwrap().to_owned(), replayed)
}

/// The status and the body of a GET.
pub(crate) async fn get(
    client: &reqwest::Client,
    service: &Service,
    key: &ApiKey,
    path: &str,
) -> (u16, Value) {
    let request = client.get(format!("http://{}{path}", service.address()));
    let response = request.bearer_auth(key.reveal()).send().await.unwrap();
    let (status, body) = answer(response).await;
    (status.as_u16(), body)
}

/// The result of a read of a store that is a file: it never waits.
pub(crate) fn at_once<T>(read: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(read).poll(&mut context) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a read of a file does not wait"),
    }
}

/// Opens the data file in this directory.
pub(crate) fn open_store(directory: &Path, now: Timestamp) -> Store {
    Store::open(directory, now).unwrap().0
}

/// Adds an organisation with the domain `example.com`.
pub(crate) async fn add_organisation(store: &Store, name: &str, now: Timestamp) -> OrganisationId {
    let added = store.add_organisation(name.parse().unwrap()).await.unwrap().unwrap();
    let domain = DomainName::parse("example.com").unwrap();
    store.put_domain(added.id, domain, DomainState::Assumed, now).await.unwrap();
    added.id
}

/// Adds an API key of an organisation.
pub(crate) async fn add_api_key(
    store: &Store,
    organisation: OrganisationId,
    now: Timestamp,
) -> ApiKey {
    let key = ApiKey::generate().unwrap();
    store_api_key(store, organisation, &key, now).await;
    key
}

/// Stores an API key of an organisation.
pub(crate) async fn store_api_key(
    store: &Store,
    organisation: OrganisationId,
    key: &ApiKey,
    now: Timestamp,
) {
    let new = NewApiKey {
        label: String::new(),
        expires_at: None,
        hash: key.hash(),
        rights: KeyRights::all(),
    };
    store.add_api_key(organisation, new, now).await.unwrap();
}

/// Accepts a message that is new, under this id.
pub(crate) async fn accept(
    store: &Store,
    organisation: OrganisationId,
    draft: Draft<'_>,
    id: MessageId,
    now: Timestamp,
) {
    let request = SendRequest::parse(draft).unwrap();
    let admitted = admit(request, &store.facts(organisation)).await.unwrap();
    let accepted =
        store.accept(NewMessage::new(id, organisation, &admitted, now, now, || {})).await;
    assert_eq!(accepted.unwrap(), Accepted::New(id));
}

/// A client of the simulator at this endpoint.
pub(crate) fn ses_client(endpoint: &str, clock: &Clock) -> SesClient {
    let options = SesOptions {
        region: "eu-west-1".to_owned(),
        endpoint: Some(endpoint.to_owned()),
        configuration_set: None,
        tracking_override: TrackingOverride::Always,
        request_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(2),
        proxy: ProxyRule::Direct,
        credentials: Credentials::fixed("simulator", SecretString::from("simulator")),
    };
    SesClient::new(options, clock.clone()).unwrap()
}
