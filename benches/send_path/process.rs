//! The processes that are measured: the service, the stand-in for SES and the bare server, each
//! the way it runs alone, and what they use of the machine.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{DomainState, KeyRights, Organisation};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{NewApiKey, Store};

use crate::message;

/// Organisations that the load can come from.
pub(crate) const ORGANISATIONS: usize = 8;
/// Time limit for a process to listen.
const START_LIMIT: Duration = Duration::from_mins(15);
/// Clock ticks in a second (`sysconf(_SC_CLK_TCK)`), 100 on every Linux that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that listens; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// From its start until it listened.
    pub(crate) started_in: Duration,
}

impl Server {
    fn start(command: &mut Command, address: SocketAddr) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            if begun.elapsed() > START_LIMIT {
                child.kill()?;
                bail!("{command:?} does not listen");
            }
            sleep(Duration::from_millis(1));
        }
        Ok(Self { child, address, started_in: begun.elapsed() })
    }

    /// Starts the bare server.
    pub(crate) fn bare() -> anyhow::Result<Self> {
        let address = free_address()?;
        Self::start(this_program()?.arg("bare").arg(address.to_string()), address)
    }

    /// The bare server with a journal in `directory`: the durable ceiling.
    pub(crate) fn durable(directory: &Path) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = this_program()?;
        command.arg("durable").arg(address.to_string()).arg(directory.join("journal"));
        Self::start(&mut command, address)
    }

    /// The bare server that passes messages on: the sending ceiling.
    pub(crate) fn relay(provider: &Self) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = this_program()?;
        command.arg("relay").arg(address.to_string()).arg(provider.address.to_string());
        Self::start(&mut command, address)
    }

    /// The stand-in for SES, which takes `latency` for each call.
    pub(crate) fn simulator(latency: Duration) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = this_program()?;
        command
            .arg("simulator")
            .args(["--listen", &address.to_string(), "--verified", message::DOMAIN])
            .args(["--latency", &format!("{}ms", latency.as_millis())])
            .stderr(Stdio::null());
        Self::start(&mut command, address)
    }

    /// A stand-in for SES whose account may not send: the service parks every message.
    pub(crate) fn paused_simulator() -> anyhow::Result<Self> {
        let simulator = Self::simulator(Duration::ZERO)?;
        let status = Command::new("curl")
            .args(["--silent", "--fail", "--output", "/dev/null", "--request", "PUT"])
            .args(["--data", r#"{"always":"sending_paused"}"#])
            .arg(format!("http://{}/simulator/faults", simulator.address))
            .status()
            .context("curl cannot be run")?;
        anyhow::ensure!(status.success(), "the stand-in does not take its faults");
        Ok(simulator)
    }

    /// The service on a prepared directory, sending through `provider`.
    pub(crate) fn service(directory: &Path, provider: &Self) -> anyhow::Result<Self> {
        Self::service_with(directory, provider, &[])
    }

    /// The service, keeping all memory that it has used once, as it does while it sends.
    pub(crate) fn service_that_keeps_memory(
        directory: &Path,
        provider: &Self,
    ) -> anyhow::Result<Self> {
        Self::service_with(directory, provider, &[("MIMALLOC_PURGE_DELAY", "-1")])
    }

    /// The same, which takes submissions over SMTP at `smtp` as well.
    pub(crate) fn service_with_smtp(
        directory: &Path,
        provider: &Self,
        smtp: SocketAddr,
    ) -> anyhow::Result<Self> {
        let more = format!("[smtp]\nlisten = \"{smtp}\"\n");
        Self::configured_service(directory, provider, &more, &[("MIMALLOC_PURGE_DELAY", "-1")])
    }

    fn service_with(
        directory: &Path,
        provider: &Self,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        Self::configured_service(directory, provider, "", variables)
    }

    /// The service with more tables in its configuration.
    fn configured_service(
        directory: &Path,
        provider: &Self,
        more: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let address = free_address()?;
        let config = directory.join("pillarbox.toml");
        let text = format!(
            "listen = \"{address}\"\n\
             operator_listen = \"{}\"\n\
             data_dir = \"{}\"\n\
             admin_socket = \"{}\"\n\
             [sending]\n\
             max_pending_bytes = {}\n\
             [ses]\n\
             endpoint = \"http://{}\"\n\
             {more}",
            free_address()?,
            directory.display(),
            socket(directory).display(),
            16_u64 << 30,
            provider.address,
        );
        fs::write(&config, text)?;
        let mut command = this_program()?;
        command
            .args(["serve", "--config"])
            .arg(config)
            .envs(variables.iter().copied())
            .env("RUST_LOG", "warn")
            .env("AWS_ACCESS_KEY_ID", "simulator")
            .env("AWS_SECRET_ACCESS_KEY", "simulator")
            .stderr(fs::File::create(directory.join("log"))?);
        Self::start(&mut command, address)
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .and_then(|rest| rest.trim().strip_suffix(" kB"))
            .context("/proc tells the resident size")?
            .parse()?;
        Ok(kib * 1024 + self.arena_bytes()?)
    }

    /// The memory of the bodies, as the kernel counts it: it belongs to no process, however many
    /// descriptors of it a process has.
    fn arena_bytes(&self) -> anyhow::Result<u64> {
        let mut blocks = BTreeMap::new();
        for file in fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            let path = file?.path();
            let target = fs::read_link(&path).unwrap_or_default();
            if target.to_string_lossy().contains("memfd:pillarbox-bodies") {
                let memory = fs::metadata(&path)?;
                blocks.insert(memory.ino(), memory.blocks());
            }
        }
        Ok(blocks.values().sum::<u64>() * 512)
    }

    /// Processor time used so far.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // proc_pid_stat(5): utime and stime are fields 14 and 15; field 2 may contain anything.
        let rest = stat.rsplit_once(')').context("/proc tells the processor time")?.1;
        let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        let ticks: f64 = ticks.sum::<Result<f64, _>>()?;
        Ok(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
    }

    /// Ends it in good order, or fails if it takes more than two minutes.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().to_string();
        anyhow::ensure!(Command::new("kill").args(["-TERM", &pid]).status()?.success(), "kill");
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            anyhow::ensure!(begun.elapsed() < Duration::from_mins(2), "the process does not end");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of the header that lets requests in.
pub(crate) fn authorization() -> String {
    authorizations(1)
}

/// The header's values of so many organisations, one a line.
pub(crate) fn authorizations(organisations: usize) -> String {
    let value = |number| format!("Bearer {}", api_key(number));
    (0..organisations).map(value).collect::<Vec<_>>().join("\n")
}

/// The command that lets submissions in.
pub(crate) fn sasl_plain() -> String {
    let response = STANDARD.encode(format!("\0bench\0{}", api_key(0)));
    format!("AUTH PLAIN {response}\r\n")
}

fn api_key(organisation: usize) -> String {
    format!("pb_benchbenchbenchbenchbenchbenchbenchbenc{organisation:04}")
}

/// The name of an organisation that the load comes from.
pub(crate) fn organisation_name(number: usize) -> String {
    format!("acme-{number}")
}

/// The service's administration socket.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("admin.sock")
}

/// A directory on the disk that is measured: below `target`, like everything that is built.
pub(crate) fn directory() -> anyhow::Result<tempfile::TempDir> {
    let parent = output_directory()?;
    Ok(tempfile::Builder::new().prefix("data-").tempdir_in(parent)?)
}

/// Directory of the results.
pub(crate) fn output_directory() -> anyhow::Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    fs::create_dir_all(&directory)?;
    Ok(directory.canonicalize()?)
}

/// A directory with an empty store that lets the load in.
pub(crate) fn prepared() -> anyhow::Result<tempfile::TempDir> {
    let directory = directory()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (store, _) = Store::open(directory.path(), now())?;
    runtime.block_on(set_up(&store))?;
    Ok(directory)
}

/// Adds the organisations, each with its key and its domain; returns the first.
pub(crate) async fn set_up(store: &Store) -> anyhow::Result<Organisation> {
    let first = set_up_organisation(store, 0).await?;
    for number in 1..ORGANISATIONS {
        set_up_organisation(store, number).await?;
    }
    Ok(first)
}

/// Adds an organisation with its key and its domain.
pub(crate) async fn set_up_organisation(
    store: &Store,
    number: usize,
) -> anyhow::Result<Organisation> {
    let name = organisation_name(number).parse()?;
    let organisation = store.add_organisation(name).await?.context("a new name")?;
    let key = ApiKey::parse(&api_key(number))?;
    let new = NewApiKey {
        label: "bench".to_owned(),
        expires_at: None,
        hash: key.hash(),
        rights: KeyRights::all(),
    };
    store.add_api_key(organisation.id, new, now()).await?;
    let domain = DomainName::parse(message::DOMAIN)?;
    store.put_domain(organisation.id, domain, DomainState::Assumed, now()).await?;
    Ok(organisation)
}

/// The wall clock's time.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// An address of this machine at which nothing listens.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
