//! The cache with scripted loads, and the chain in processes of their own, because it reads the
//! environment of its process.

use std::collections::VecDeque;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime};

use super::*;
use crate::stub::{Answer, Request, Server};

/// Results of the loads of a cache, one after the other.
#[derive(Debug)]
pub(crate) struct Script(Mutex<VecDeque<Result<Keys, LoadError>>>);

impl Script {
    pub(super) async fn next(&self) -> Result<Keys, LoadError> {
        tokio::task::yield_now().await;
        self.0.lock().unwrap().pop_front().expect("one load more than the test allows")
    }
}

impl CredentialCache {
    pub(crate) fn scripted(
        loads: impl IntoIterator<Item = Result<Keys, LoadError>>,
        clock: Clock,
    ) -> Self {
        let script = Script(Mutex::new(loads.into_iter().collect()));
        Self {
            loader: Arc::new(Loader::Scripted(script)),
            clock,
            current: Mutex::default(),
            unfinished: Mutex::default(),
        }
    }
}

pub(crate) fn keys(name: &str, expiry: Option<Timestamp>) -> Keys {
    Keys::new(name, "secret", None, expiry.map(SystemTime::from), "test")
}

const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const HOUR: Duration = Duration::from_hours(1);

async fn name(cache: &CredentialCache) -> String {
    cache.get().await.unwrap().access_key_id().to_owned()
}

#[tokio::test]
async fn all_who_ask_at_once_wait_for_one_load() {
    let cache = CredentialCache::scripted([Ok(keys("A", None))], Clock::manual(START));
    let names = tokio::join!(name(&cache), name(&cache), name(&cache));
    assert_eq!(names, ("A".into(), "A".into(), "A".into()));
}

#[tokio::test]
async fn a_reload_takes_over_what_changed_and_keeps_what_is_good_if_it_fails() {
    let loads = [Ok(keys("A", None)), Ok(keys("B", None)), Err(LoadError::None)];
    let cache = CredentialCache::scripted(loads, Clock::manual(START));
    assert_eq!((name(&cache).await, name(&cache).await), ("A".into(), "A".into()));
    cache.reload();
    assert_eq!((name(&cache).await, name(&cache).await), ("B".into(), "B".into()));
    cache.reload();
    cache.reload();
    assert_eq!(name(&cache).await, "B");
}

#[tokio::test]
async fn a_load_given_up_by_one_caller_is_done_by_the_next() {
    let cache = CredentialCache::scripted([Ok(keys("A", None))], Clock::manual(START));
    tokio::select! {
        biased;
        _ = cache.get() => panic!("loaded at once"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(name(&cache).await, "A");
}

#[tokio::test]
async fn temporary_credentials_are_renewed_minutes_before_they_end() {
    let clock = Clock::manual(START);
    let loads = [Ok(keys("A", Some(START.plus(HOUR)))), Ok(keys("B", None))];
    let cache = CredentialCache::scripted(loads, clock.clone());
    assert_eq!(name(&cache).await, "A");
    clock.set(START.plus(HOUR).minus(RENEW_BEFORE_EXPIRY + RENEWAL_JITTER * 2));
    assert_eq!(name(&cache).await, "A");
    clock.set(START.plus(HOUR).minus(RENEW_BEFORE_EXPIRY));
    assert_eq!(name(&cache).await, "B");
}

#[tokio::test]
async fn a_failed_renewal_leaves_good_credentials_in_use_and_is_tried_again() {
    let clock = Clock::manual(START);
    let failed = || Err(LoadError::Failed("down".to_owned()));
    let loads = [Ok(keys("A", Some(START.plus(HOUR)))), failed(), failed(), Ok(keys("B", None))];
    let cache = CredentialCache::scripted(loads, clock.clone());
    assert_eq!(name(&cache).await, "A");
    clock.set(START.plus(HOUR).minus(RENEW_BEFORE_EXPIRY));
    assert_eq!((name(&cache).await, name(&cache).await), ("A".into(), "A".into()));
    clock.set(START.plus(HOUR));
    assert_eq!(cache.get().await, failed(), "what has ended is not used");
    clock.set(START.plus(HOUR).plus(FAILURE_KEPT));
    assert_eq!(name(&cache).await, "B");
}

#[tokio::test]
async fn a_failure_is_the_answer_for_a_while() {
    let clock = Clock::manual(START);
    let cache =
        CredentialCache::scripted([Err(LoadError::None), Ok(keys("A", None))], clock.clone());
    for _ in 0..3 {
        assert_eq!(cache.get().await, Err(LoadError::None));
    }
    clock.set(START.plus(FAILURE_KEPT));
    assert_eq!(name(&cache).await, "A");
}

#[tokio::test]
async fn refused_credentials_are_forgotten_unless_just_loaded() {
    let clock = Clock::manual(START);
    let loads = [Ok(keys("A", None)), Ok(keys("B", None))];
    let cache = CredentialCache::scripted(loads, clock.clone());
    let first = cache.get().await.unwrap();
    cache.discard(&first);
    assert_eq!(name(&cache).await, "A");
    clock.set(START.plus(FAILURE_KEPT));
    cache.discard(&keys("other", None));
    assert_eq!(name(&cache).await, "A");
    cache.discard(&first);
    assert_eq!(name(&cache).await, "B");
}

#[test]
fn no_secret_shows() {
    let fixed = Credentials::fixed("AKID", SecretString::from("hidden"));
    assert!(!format!("{fixed:?}").contains("hidden"));
    let cache = CredentialCache::new(fixed, "eu-west-1", connector(), Clock::system());
    assert!(!format!("{cache:?}").contains("hidden"));
}

fn connector() -> Connector {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Connector::new(client.clone(), client, ProxyRule::Direct)
}

/// Marks a process that was started for its environment's sake.
const PROBE: &str = "CREDENTIALS_PROBE";

/// Loads credentials with the environment as it is; the tests below run it with their own. In the
/// test run itself there is nothing to load for.
#[tokio::test]
async fn probe() {
    if env::var_os(PROBE).is_none() {
        return;
    }
    let cache = CredentialCache::new(Credentials::aws(), "eu-west-1", connector(), Clock::system());
    match cache.get().await {
        Ok(keys) => println!(
            "\nprobe: {} {} {} {}",
            keys.access_key_id(),
            keys.secret_access_key(),
            keys.session_token().unwrap_or("-"),
            keys.expiry().map_or("lasting", |_| "temporary"),
        ),
        Err(error) => println!("\nprobe: error: {error}"),
    }
}

/// Result of the chain in this environment.
async fn found(variables: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "credentials::tests::probe", "--nocapture"])
        .env_clear()
        .env(PROBE, "1")
        .env("HOME", home.path())
        .envs(variables.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("probe: "));
    line.unwrap_or_else(|| panic!("{text}")).to_owned()
}

const NO_IMDS: (&str, &str) = ("AWS_EC2_METADATA_DISABLED", "true");
const TEMPORARY_JSON: &str = r#"{"Code":"Success","Type":"AWS-HMAC",
    "AccessKeyId":"AKIDROLE","SecretAccessKey":"rolesecret","Token":"roletoken",
    "LastUpdated":"2026-01-01T00:00:00Z","Expiration":"2099-01-01T00:00:00Z"}"#;
const TEMPORARY: &str = "AKIDROLE rolesecret roletoken temporary";

#[tokio::test]
async fn the_environment_comes_first() {
    let found = found(&[
        ("AWS_ACCESS_KEY_ID", "AKIDENV"),
        ("AWS_SECRET_ACCESS_KEY", "envsecret"),
        ("AWS_SESSION_TOKEN", "envtoken"),
    ]);
    assert_eq!(found.await, "AKIDENV envsecret envtoken lasting");
}

fn written(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[tokio::test]
async fn a_shared_profile_is_found_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = written(
        directory.path(),
        "credentials",
        "[default]\naws_access_key_id = A\naws_secret_access_key = a\n\
         [work]\naws_access_key_id = AKIDWORK\naws_secret_access_key = worksecret\n",
    );
    let variables =
        [("AWS_SHARED_CREDENTIALS_FILE", file.as_str()), ("AWS_PROFILE", "work"), NO_IMDS];
    assert_eq!(found(&variables).await, "AKIDWORK worksecret - lasting");
    assert_eq!(found(&variables[..1]).await, "A a - lasting");
}

#[tokio::test]
async fn a_container_gives_its_role() {
    let server = Server::with(|request: &Request| match request.header("authorization") {
        Some("container-token") if request.head.starts_with("GET /creds ") => {
            Answer::json(200, TEMPORARY_JSON)
        }
        _ => Answer::json(401, "{}"),
    })
    .await;
    let uri = format!("{}/creds", server.url());
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token"),
    ];
    assert_eq!(found(&variables).await, TEMPORARY);
}

/// Instance metadata, version 2 alone: no answer without its session token.
fn instance_metadata(request: &Request) -> Answer {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials";
    let head = request.head.as_str();
    let asks = |path: &str| head.starts_with(&format!("GET {path} "));
    if head.starts_with("PUT /latest/api/token ") {
        return match request.header("x-aws-ec2-metadata-token-ttl-seconds") {
            Some(_) => {
                let headers = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
                Answer::with_headers(200, headers, "imds-token")
            }
            None => Answer::json(400, ""),
        };
    }
    if request.header("x-aws-ec2-metadata-token") != Some("imds-token") {
        Answer::json(401, "")
    } else if asks(&format!("{ROLES}/")) {
        Answer::with_type(200, "text/plain", "mailer")
    } else if asks(&format!("{ROLES}/mailer")) {
        Answer::json(200, TEMPORARY_JSON)
    } else {
        Answer::json(404, "")
    }
}

#[tokio::test]
async fn an_instance_gives_its_role() {
    let server = Server::with(instance_metadata).await;
    let url = server.url();
    assert_eq!(found(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]).await, TEMPORARY);
}

/// STS's answer to `action`.
fn assumed(action: &str) -> Answer {
    Answer::with_type(
        200,
        "text/xml",
        &format!(
            "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
             <{action}Result><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/mailer/x</Arn>\
             <AssumedRoleId>R:x</AssumedRoleId></AssumedRoleUser><Credentials>\
             <AccessKeyId>AKIDROLE</AccessKeyId><SecretAccessKey>rolesecret</SecretAccessKey>\
             <SessionToken>roletoken</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>\
             </Credentials></{action}Result></{action}Response>"
        ),
    )
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_its_role() {
    let server = Server::with(|_| assumed("AssumeRoleWithWebIdentity")).await;
    let directory = tempfile::tempdir().unwrap();
    let token = written(directory.path(), "token", "web-token");
    let url = server.url();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/mailer"),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    assert_eq!(found(&variables).await, TEMPORARY);
    let body = String::from_utf8(server.requests().remove(0).body).unwrap();
    assert!(body.contains("WebIdentityToken=web-token"), "{body}");
}

#[tokio::test]
async fn a_profile_may_assume_a_role() {
    let server = Server::with(|_| assumed("AssumeRole")).await;
    let directory = tempfile::tempdir().unwrap();
    let file = written(
        directory.path(),
        "config",
        "[profile base]\naws_access_key_id = AKIDBASE\naws_secret_access_key = s\n\
         [profile mailer]\nsource_profile = base\nrole_arn = arn:aws:iam::1:role/mailer\n",
    );
    let url = server.url();
    let variables = [
        ("AWS_CONFIG_FILE", file.as_str()),
        ("AWS_PROFILE", "mailer"),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    assert_eq!(found(&variables).await, TEMPORARY);
    let request = server.requests().remove(0);
    let authorization = request.header("authorization").unwrap();
    assert!(authorization.contains("Credential=AKIDBASE/"), "{authorization}");
    assert!(authorization.contains("/eu-west-1/sts/"), "{authorization}");
}

#[tokio::test]
async fn without_any_source_the_error_says_what_to_do_and_comes_soon() {
    let nothing = found(&[NO_IMDS]).await;
    assert_eq!(nothing, format!("error: {}", LoadError::None));
    // Off EC2 nothing listens, or nothing answers.
    let silent = Server::start(Answer::Silence).await;
    for endpoint in ["http://127.0.0.1:1", &silent.url()] {
        let start = Instant::now();
        let answer = found(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)]).await;
        assert_eq!(answer, nothing, "{endpoint}");
        assert!(start.elapsed() < LOAD_TIMEOUT, "{endpoint}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_source_that_fails_is_named_without_its_secrets() {
    let server = Server::start(Answer::json(500, r#"{"message":"rolesecret"}"#)).await;
    let uri = format!("{}/creds", server.url());
    let answer = found(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &uri)]).await;
    assert!(answer.starts_with("error: AWS credentials could not be loaded: "), "{answer}");
    assert!(!answer.contains("rolesecret"), "{answer}");
}

#[tokio::test]
async fn what_instance_metadata_says_is_told_once() {
    let server = Server::start(Answer::json(403, r#"{"message":"no"}"#)).await;
    let answer = found(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url())]).await;
    assert_eq!(answer.matches("IMDS is disabled").count(), 1, "{answer}");
    assert_eq!(answer.matches("failed to load IMDS").count(), 1, "{answer}");
    assert!(!answer.ends_with('.'), "{answer}");
}
