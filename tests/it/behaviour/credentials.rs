//! Credentials that cannot be used are reported before the first message, and loaded again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, FaultScope, Faults};
use reqwest::StatusCode;
use serde_json::Value;

use crate::behaviour::operator::wait_until_ready;
use crate::kit::{
    AWS_ACCESS_KEY, AWS_SECRET, PATIENCE, Server, Site, answer, look, message, metric, status,
};

fn write(file: &Path, access_key: &str, secret: &str) {
    let text =
        format!("[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret}\n");
    std::fs::write(file, text).unwrap();
}

fn credentials_file(site: &Site) -> PathBuf {
    site.directory().join("credentials")
}

/// Starts the service with the AWS credentials of this shared file alone.
fn start(site: &Site, file: &Path) -> Server {
    let mut command = site.service_after("unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY;");
    command.env("AWS_SHARED_CREDENTIALS_FILE", file).env("AWS_CONFIG_FILE", "/dev/null");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    site.start_by(command)
}

async fn fault(server: &Server, code: &str) -> Option<f64> {
    metric(server, &format!("pillarbox_account_fault{{cause=\"{code}\"}}")).await
}

/// Waits until the service is not ready for this reason; gives what `/readyz` says of it.
async fn not_ready(server: &Server, code: &str) -> Value {
    told(server, code, StatusCode::SERVICE_UNAVAILABLE).await
}

/// Waits until `/readyz` reports this with this status; returns its text.
async fn told(server: &Server, code: &str, expected: StatusCode) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        let mut reasons = document["reasons"].as_array().unwrap().iter();
        if let Some(reason) = reasons.find(|reason| reason["code"] == code) {
            assert_eq!(status, expected, "{document}");
            assert_eq!(reason["severity"], "critical");
            return reason.clone();
        }
        assert!(Instant::now() < end, "{code} is not in {document}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `status` exits with 1, says this, and nothing that contradicts it.
fn is_critical(site: &Site, words: &str) {
    let output = site.run_alone(&["status"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("takes messages"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_credentials_are_told_before_the_first_message_and_recovered_from() {
    let site = Site::new().await;
    let file = credentials_file(&site);
    let server = start(&site, &file);
    let reason = not_ready(&server, "credentials_missing").await;
    assert!(reason["message"].as_str().unwrap().contains("no AWS credentials found"), "{reason}");
    assert!(look(&site, &server).await.contains("credentials_missing"));
    is_critical(&site, "there are no AWS credentials to sign with");
    assert_eq!(status(&site)["sending"]["account"]["fault"], "credentialsMissing");
    assert_eq!(fault(&server, "credentials_missing").await, Some(1.0));
    assert_eq!(server.operator("/healthz").await.status(), StatusCode::OK);

    for (access_key, secret) in [("AKIDUNKNOWN", AWS_SECRET), (AWS_ACCESS_KEY, "wrong")] {
        write(&file, access_key, secret);
        let reason = not_ready(&server, "credentials_refused").await;
        assert!(reason["message"].as_str().unwrap().contains("AWS refuses"), "{reason}");
        assert_eq!(fault(&server, "credentials_refused").await, Some(1.0));
        assert_eq!(fault(&server, "credentials_missing").await, Some(0.0));
    }
    // Messages are accepted all the same, and wait.
    let id = server.send(&message()).await;
    not_ready(&server, "setup_fault").await;
    server.wait_for(&id, "queued").await;

    write(&file, AWS_ACCESS_KEY, AWS_SECRET);
    wait_until_ready(&server).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(fault(&server, "credentials_refused").await, Some(0.0));
    assert_eq!(status(&site)["sending"]["account"], Value::Null);
    let log = server.log();
    assert!(log.contains("nothing can be sent with these AWS credentials"), "{log}");
    assert!(log.contains("the AWS credentials are good"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_loads_the_credentials_again() {
    let site = Site::new().await;
    let file = credentials_file(&site);
    write(&file, AWS_ACCESS_KEY, AWS_SECRET);
    let server = start(&site, &file);
    wait_until_ready(&server).await;
    write(&file, AWS_ACCESS_KEY, "wrong");
    server.signal("HUP");
    // It had good ones, so messages wait for the next good ones instead of being turned away.
    told(&server, "credentials_refused", StatusCode::OK).await;
    is_critical(&site, "AWS refuses the credentials");
    server.send(&message()).await;
    told(&server, "setup_fault", StatusCode::OK).await;
    is_critical(&site, "AWS refuses the credentials");
    // The same if the configuration cannot be read.
    site.reconfigure("data_dir", "no_such_key");
    write(&file, AWS_ACCESS_KEY, AWS_SECRET);
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while fault(&server, "credentials_refused").await != Some(0.0) {
        assert!(Instant::now() < end, "they are not loaded");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(server.log().contains("the new configuration cannot be used"));
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_look_at_the_account_is_told_and_sending_goes_on() {
    let site = Site::new().await;
    let denied = Faults::always(Fault::AccessDenied).with_scope(FaultScope::OtherCalls);
    site.simulator.set_faults(denied);
    let server = site.start();
    wait_until_ready(&server).await;
    assert_eq!(fault(&server, "account_access_denied").await, Some(1.0));
    let told = look(&site, &server).await;
    assert!(told.contains("account_access_denied") && told.contains("ses:GetAccount"), "{told}");
    assert_eq!(status(&site)["sending"]["account"]["fault"], "accessDenied");
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(server.operator("/readyz").await.status(), StatusCode::OK);
}

/// Starts the service with a profile of this text alone.
fn start_with_profile(site: &Site, profile: &str) -> Server {
    let file = site.directory().join("config");
    std::fs::write(&file, profile).unwrap();
    let mut command = site.service_after("unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY;");
    command.env("AWS_CONFIG_FILE", file).env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_PROFILE", "mail");
    site.start_by(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_give_the_credentials() {
    let site = Site::new().await;
    let program = site.directory().join("program");
    let document = format!(
        "{{\"Version\": 1, \"AccessKeyId\": \"{AWS_ACCESS_KEY}\", \"SecretAccessKey\": \"{AWS_SECRET}\"}}"
    );
    let profile =
        format!("[profile mail]\ncredential_process = sh {} 'an argument'\n", program.display());
    std::fs::write(&program, format!("echo '{document}'\n")).unwrap();
    let server = start_with_profile(&site, &profile);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let log = server.terminate().await;
    assert!(!log.contains(AWS_SECRET) && !log.contains("an argument"), "{log}");

    // One that fails is reported with its output.
    std::fs::write(&program, "echo 'the vault is sealed' >&2; exit 3\n").unwrap();
    let server = start_with_profile(&site, &profile);
    let reason = not_ready(&server, "credentials_missing").await;
    assert!(reason["message"].as_str().unwrap().contains("the vault is sealed"), "{reason}");
    std::fs::write(&program, format!("echo '{document}'\n")).unwrap();
    wait_until_ready(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_runs_once_however_many_calls_wait() {
    let site = Site::new().await;
    let (program, runs) = (site.directory().join("program"), site.directory().join("runs"));
    std::fs::write(&program, format!("echo $$ >> {}\nexec sleep 600\n", runs.display())).unwrap();
    let profile = format!("[profile mail]\ncredential_process = sh {}\n", program.display());
    let server = start_with_profile(&site, &profile);
    let reason = not_ready(&server, "credentials_missing").await;
    assert!(reason["message"].as_str().unwrap().contains("no answer within"), "{reason}");
    let log = server.log();
    let end = Instant::now() + PATIENCE;
    // Another check has passed.
    while server.log().matches("no answer within").count()
        <= log.matches("no answer within").count()
    {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let started = std::fs::read_to_string(&runs).unwrap();
    assert_eq!(started.lines().count(), 1, "{started}");
    for id in started.lines() {
        assert!(std::process::Command::new("kill").arg(id).status().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_that_needs_a_person_is_named_and_says_what_a_service_can_use() {
    let site = Site::new().await;
    for (profile, words) in [
        (
            "[profile mail]\nsso_start_url = https://x.awsapps.com/start\nsso_region = eu-west-1\n\
             sso_account_id = 123456789012\nsso_role_name = mailer\n",
            "credential_process",
        ),
        (
            "[profile mail]\nsso_session = x\nsso_account_id = 123456789012\nsso_role_name = mailer\n\
             [sso-session x]\nsso_start_url = https://x.awsapps.com/start\nsso_region = eu-west-1\n",
            "credential_process",
        ),
        (
            "[profile mail]\nlogin_session = arn:aws:iam::123456789012:user/ann\n",
            "a person's login",
        ),
    ] {
        let server = start_with_profile(&site, profile);
        let reason = not_ready(&server, "credentials_missing").await;
        let message = reason["message"].as_str().unwrap();
        assert!(message.contains(words) && !message.contains("cargo"), "{message}");
        assert!(!server.terminate().await.contains("cargo feature"), "{message}");
    }
}
