//! A place in which the real service runs and something goes wrong: its directory, its provider,
//! its process and its clients.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use pillarbox_domain::time::Timestamp;
use pillarbox_simulator::{EventOptions, Events, Options, Simulator};
use rcgen::{CertificateParams, KeyPair};
use reqwest::StatusCode;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::kit::{
    Manager, PATIENCE, Process, Site, add_api_key, add_organisation, free_port, http_client,
    open_store,
};
use crate::set_clock;

/// Interval at which an expected state is checked.
const POLL: Duration = Duration::from_millis(20);

/// Remaining time of a certificate that need not be renewed.
const FAR_OFF: Duration = Duration::from_hours(80 * 24);

/// Set-up of a site, beyond the usual.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// More configuration, as TOML that follows the top-level keys.
    pub(crate) more: &'static str,
    /// The organisations. Each has the domain `example.com`, and a key.
    pub(crate) organisations: &'static [&'static str],
    pub(crate) options: Options,
    pub(crate) place: Place,
    /// True if clients have to speak TLS.
    pub(crate) tls: bool,
    /// Change to its data before the service starts.
    pub(crate) prepare: fn(&Path),
}

/// Environment of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The test's own environment.
    Plain,
    /// With its data on a file system of this size, in the form for `mount`.
    SmallDisk(&'static str),
    /// With at most so many files open.
    FewFiles(usize),
    /// By a clock that is as far off as the file [`Monitored::clock`] says: this far to begin with,
    /// in the form for libfaketime.
    ClockOff(&'static str),
    /// Under a service manager that keeps bodies which are not its own.
    OtherBodies,
}

impl Default for Setup {
    fn default() -> Self {
        let options = Options {
            verified: vec!["example.com".to_owned()],
            events: Events::On(EventOptions::default()),
            signature_max_age: None,
            ..Options::default()
        };
        Self {
            more: "",
            organisations: &["acme"],
            options,
            place: Place::Plain,
            tls: false,
            prepare: |_| (),
        }
    }
}

/// The metrics at one moment: samples by name and labels.
pub(crate) type Metrics = BTreeMap<String, f64>;

/// A site whose service runs, with what monitors it.
pub(crate) struct Monitored {
    site: Site,
    place: Place,
    keys: BTreeMap<String, String>,
    pub(crate) base: String,
    pub(crate) operator: Operator,
    client: reqwest::Client,
    service: Option<Process>,
}

/// Operator listener of the service.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    /// As host and port.
    pub(crate) address: String,
    client: reqwest::Client,
}

impl Operator {
    /// The metrics now; `None` if they cannot be read.
    pub(crate) async fn metrics(&self) -> Option<Metrics> {
        let answer = self.client.get(format!("http://{}/metrics", self.address)).send().await;
        let text = answer.ok()?.text().await.ok()?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        Some(samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect())
    }
}

impl Monitored {
    /// Founds a site, and starts the service.
    pub(crate) async fn new(setup: Setup) -> Self {
        let site = Site::empty("", setup.options).await;
        let root = site.directory().display();
        let tls = if setup.tls {
            write_certificate(site.directory(), FAR_OFF);
            format!("[tls]\ncertificate = \"{root}/crt\"\nkey = \"{root}/key\"\n")
        } else {
            String::new()
        };
        let ses = format!("endpoint = \"{}\"\n", site.simulator.endpoint());
        site.configure(&format!("{}\n{tls}", setup.more), &ses);
        site.read_events();
        // Fixed, because Prometheus has to find it again after a restart.
        let (base, operator) =
            (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        site.reconfigure(
            "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"",
            &format!("listen = \"{base}\"\noperator_listen = \"{operator}\""),
        );
        let keys = found(&site.data_dir(), setup.organisations).await;
        (setup.prepare)(&site.data_dir());
        if let Place::ClockOff(off) = setup.place {
            std::fs::write(site.directory().join("clock"), off).unwrap();
        }
        let client = http_client();
        let mut monitored = Self {
            site,
            place: setup.place,
            keys,
            base: format!("http://{base}"),
            operator: Operator { address: operator, client: client.clone() },
            client,
            service: None,
        };
        monitored.start().await;
        monitored
    }

    /// Starts the service and waits until it answers.
    pub(crate) async fn start(&mut self) {
        self.start_with(&[]).await;
    }

    /// The same, with more in its environment.
    pub(crate) async fn start_with(&mut self, variables: &[(&str, &str)]) {
        let mut command = self.service_command();
        command.env_remove("RUST_LOG").envs(variables.iter().copied());
        let service = Process::spawn(command);
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(self.base.strip_prefix("http://").unwrap()).await.is_err() {
            assert!(Instant::now() < end, "the service did not start: {}", service.log());
            sleep(POLL).await;
        }
        self.service = Some(service);
    }

    fn service_command(&self) -> Command {
        match self.place {
            Place::Plain => self.site.service(),
            Place::FewFiles(files) => self.site.service_after(&format!("ulimit -n {files} &&")),
            Place::SmallDisk(size) => self.site.service_on_small_disk(size),
            Place::ClockOff(_) => {
                let mut command = self.site.service();
                set_clock(&mut command, &self.clock());
                command
            }
            Place::OtherBodies => {
                let manager = Manager::of(&self.site, 2, Vec::new());
                manager.keep("arena", memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
                manager.command(&self.site)
            }
        }
    }

    /// Runs an administration command that must succeed.
    pub(crate) fn done(&self, arguments: &[&str]) {
        self.site.done(arguments);
    }

    pub(crate) fn simulator(&self) -> &Simulator {
        &self.site.simulator
    }

    fn service(&self) -> &Process {
        self.service.as_ref().expect("the service runs")
    }

    /// Ends the service as a crash does.
    pub(crate) fn kill(&mut self) {
        self.service = None;
    }

    /// Replaces the certificate by one that ends so soon, and has the service check it.
    pub(crate) fn renew_certificate(&self, rest: Duration) {
        write_certificate(self.site.directory(), rest);
        self.reload();
    }

    /// Has the service read its configuration and its certificate again.
    pub(crate) fn reload(&self) {
        self.signal("HUP");
    }

    /// Has alerts go to this receiver.
    pub(crate) fn post_alerts_to(&self, url: &str) {
        let (config, secret) = (self.site.config(), self.path("secret"));
        std::fs::write(&secret, "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX").unwrap();
        let secret = secret.display();
        let alerts = format!("\n[alerts]\nurl = \"{url}\"\nsecret_file = \"{secret}\"\n");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(config, text + &alerts).unwrap();
        self.reload();
    }

    /// Sends the process a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        self.service().signal(name);
    }

    /// Address at which SMTP sessions begin in plain text.
    pub(crate) fn smtp(&self) -> String {
        self.service().smtp_listening()
    }

    /// The key of an organisation.
    pub(crate) fn key(&self, organisation: &str) -> &str {
        &self.keys[organisation]
    }

    /// Id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.service().id()
    }

    /// The file that says how far the service's clock is off.
    pub(crate) fn clock(&self) -> PathBuf {
        self.path("clock")
    }

    /// The data directory as the service sees it.
    pub(crate) fn data(&self) -> PathBuf {
        self.service().seen_from_outside(&self.site.data_dir())
    }

    /// Path in the site's directory. (The data directory is better read while no service runs.)
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.site.directory().join(name)
    }

    /// Posts a message of an organisation; gives the status and the answer.
    pub(crate) async fn post(&self, organisation: &str, message: &Value) -> (StatusCode, Value) {
        let request = self.client.post(format!("{}/emails", self.base));
        let request = request.bearer_auth(&self.keys[organisation]);
        let request = request.header("content-type", "application/json").body(message.to_string());
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    /// Sends a message of `acme` that must be accepted; gives its id.
    pub(crate) async fn send(&self) -> String {
        let (status, answer) = self.post("acme", &message(&["bob@example.org"])).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    /// Asks for a record; gives the status.
    pub(crate) async fn read(&self, id: &str) -> StatusCode {
        let request = self.client.get(format!("{}/emails/{id}", self.base));
        request.bearer_auth(&self.keys["acme"]).send().await.unwrap().status()
    }

    /// Goes on sending so many messages a second, with any result.
    pub(crate) async fn keep_sending(&self, a_second: f64) -> ! {
        loop {
            self.post("acme", &message(&["bob@example.org"])).await;
            sleep(Duration::from_secs_f64(1.0 / a_second)).await;
        }
    }

    /// Waits until the metrics are so.
    pub(crate) async fn until(&self, so: impl Fn(&Metrics) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !self.operator.metrics().await.is_some_and(|metrics| so(&metrics)) {
            assert!(
                Instant::now() < end,
                "it never comes about: {:#?}",
                self.operator.metrics().await
            );
            sleep(POLL).await;
        }
    }

    /// Waits until all accepted messages are final.
    pub(crate) async fn until_settled(&self) {
        self.until(|metrics| is(metrics, "pillarbox_queue_messages", 0)).await;
    }

    /// The address that opens the operators' page.
    pub(crate) fn page(&self) -> String {
        let output = self.site.done(&["status", "--page"]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// Writes a certificate of 90 days, of which so much is left, and its key.
fn write_certificate(directory: &Path, rest: Duration) {
    let end = SystemTime::now() + rest;
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = (end - Duration::from_hours(90 * 24)).into();
    params.not_after = end.into();
    let key = KeyPair::generate().unwrap();
    std::fs::write(directory.join("crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(directory.join("key"), key.serialize_pem()).unwrap();
}

/// Makes organisations, each with its domain; gives their keys.
async fn found(data: &Path, names: &[&str]) -> BTreeMap<String, String> {
    let now = Timestamp::from(SystemTime::now());
    let store = open_store(data, now);
    let mut keys = BTreeMap::new();
    for name in names {
        let organisation = add_organisation(&store, name, now).await;
        let key = add_api_key(&store, organisation, now).await;
        keys.insert((*name).to_owned(), key.reveal().to_owned());
    }
    keys
}

/// The value of a sample, or NaN if it is missing, as a series is before what it is of was added.
pub(crate) fn value(metrics: &Metrics, sample: &str) -> f64 {
    metrics.get(sample).copied().unwrap_or(f64::NAN)
}

/// True if a sample is this number.
pub(crate) fn is(metrics: &Metrics, sample: &str, number: u32) -> bool {
    value(metrics, sample).to_bits() == f64::from(number).to_bits()
}

/// A message to these recipients.
pub(crate) fn message(to: &[&str]) -> Value {
    json!({ "from": "ann@example.com", "to": to, "subject": "Hello", "text": "How are you?" })
}

/// True if the provider is impaired by this cause.
pub(crate) fn impaired(metrics: &Metrics, cause: &str) -> bool {
    is(metrics, &format!("pillarbox_provider_impaired{{cause=\"{cause}\"}}"), 1)
}
