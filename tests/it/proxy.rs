//! Proxies between the service and AWS or endpoints of webhooks, and their reports to operators.

use std::process::Command;
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::kit::{
    AWS_ACCESS_KEY, AWS_SECRET, Finished, PATIENCE, Proxy, Receiver, Reply, Server, Site, message,
};

/// User and password, as the proxy reads them and as they are written in a URL.
const USER: &str = "mail:PLANTED@proxy/secret#1";
const USER_IN_URL: &str = "mail:PLANTED%40proxy%2Fsecret%231";
const ACCOUNT: &str = "CONNECT email.eu-west-1.amazonaws.com:443";

struct Network {
    site: Site,
    proxy: Proxy,
}

impl Network {
    /// A site that calls SES at AWS's own name.
    async fn new() -> Self {
        let site = Site::with("", Options::default()).await;
        let proxy = Proxy::start(Some(USER), site.simulator.addr()).await;
        proxy.write_certificate(&site.directory().join("aws.pem"));
        Self { site, proxy }
    }

    fn url(&self) -> String {
        format!("http://{USER_IN_URL}@{}", self.proxy.address)
    }

    /// With these variables, and the certificate of the proxy's AWS.
    fn in_environment(&self, mut command: Command, variables: &[(&str, &str)]) -> Command {
        command.env("SSL_CERT_FILE", self.site.directory().join("aws.pem"));
        command.envs(variables.iter().copied());
        command
    }

    fn start(&self, variables: &[(&str, &str)]) -> Server {
        self.site.start_by(self.in_environment(self.site.service(), variables))
    }

    /// Findings of doctor about a subject.
    async fn doctor(&self, about: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let command = self.in_environment(self.site.command(&["doctor", "--json"]), variables);
        let Finished { out, err, .. } = Finished::run(command).await;
        assert!(!out.contains("PLANTED@") && !err.contains("PLANTED@"), "{out}{err}");
        assert!(!out.contains("PLANTED%") && !err.contains("PLANTED%"), "{out}{err}");
        let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let checks = document["checks"].as_array().unwrap().iter();
        let found = checks.filter(|check| check["about"] == about);
        found.map(|check| check["message"].as_str().unwrap().to_owned()).collect()
    }
}

/// No log has the password, in either form.
fn require_no_secret(log: &str) {
    // The library's own requests at `trace` are capped.
    assert!(!log.contains("PLANTED@") && !log.contains("PLANTED%"), "{log}");
}

async fn wait_for_log(server: &Server, words: &str) {
    let end = Instant::now() + PATIENCE;
    while !server.log().contains(words) {
        assert!(Instant::now() < end, "not in the log: {words}: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_proxy_takes_every_call_to_aws_and_its_password_shows_nowhere() {
    let network = Network::new().await;
    network.site.configure("", &format!("proxy = \"{}\"\n", network.url()));
    let server = network.start(&[]);
    server.ready().await;
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(network.site.simulator.accepted_total(), 1);
    assert!(
        network.proxy.taken().iter().all(|line| line == ACCOUNT),
        "{:?}",
        network.proxy.taken()
    );
    let said = format!("go through the proxy http://{} (ses.proxy)", network.proxy.address);
    wait_for_log(&server, &said).await;
    let found = network.doctor("proxy", &[]).await;
    assert!(found.len() == 1 && found[0].contains(&said), "{found:?}");
    assert_eq!(network.proxy.refused(), 0);
    require_no_secret(&server.terminate().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environments_proxy_is_used_unless_a_key_or_no_proxy_says_otherwise() {
    let network = Network::new().await;
    let url = network.url();
    network.site.configure("", "");
    let server = network.start(&[("HTTPS_PROXY", &url), ("NO_PROXY", "internal,10.0.0.0/8")]);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let said = format!("through the proxy http://{} (HTTPS_PROXY)", network.proxy.address);
    wait_for_log(&server, &said).await;
    // The service reports it, with any environment of the command.
    assert!(network.doctor("proxy", &[]).await[0].contains(&said));
    require_no_secret(&server.terminate().await);
    assert!(network.proxy.taken().contains(&ACCOUNT.to_owned()));
    // An endpoint on this machine is never behind the environment's proxy. A name that is excepted
    // is not either, nor any once the key says so.
    let before = network.proxy.taken().len();
    let endpoint = format!("endpoint = \"{}\"\n", network.site.simulator.endpoint());
    let none = format!("{endpoint}proxy = \"none\"\n");
    for (ses, except) in [(&endpoint, ""), (&endpoint, "*"), (&none, "")] {
        network.site.configure("", ses);
        let server = network.start(&[("https_proxy", &url), ("NO_PROXY", except)]);
        let id = server.send(&message()).await;
        server.wait_for(&id, "sent").await;
        let said = network.doctor("proxy", &[]).await;
        assert!(said[0].contains("do not go through a proxy"), "{said:?}");
        server.terminate().await;
    }
    assert_eq!(network.proxy.taken().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_proxy_takes_calls_to_this_machine_too() {
    let network = Network::new().await;
    let endpoint = network.site.simulator.endpoint();
    let ses = format!("endpoint = \"{endpoint}\"\nproxy = \"{}\"\n", network.url());
    network.site.configure("", &ses);
    let server = network.start(&[("NO_PROXY", "*")]);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let sent = format!("POST {endpoint}/v2/email/outbound-emails");
    assert!(network.proxy.taken().contains(&sent), "{:?}", network.proxy.taken());
    require_no_secret(&server.terminate().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_does_wrong_is_told_with_the_proxy_and_without_its_password() {
    let network = Network::new().await;
    let address = network.proxy.address;
    let wrong = format!("http://mail:PLANTED%40wrong@{address}");
    let endpoint = format!("endpoint = \"{}\"\n", network.site.simulator.endpoint());
    for (url, endpoint, words) in [
        (wrong.as_str(), "", "refuses the user and the password"),
        (wrong.as_str(), endpoint.as_str(), "refuses the user and the password"),
        ("http://mail:PLANTED%40x@127.0.0.1:1", "", "goes through the proxy http://127.0.0.1:1"),
    ] {
        network.site.configure("", &format!("{endpoint}proxy = \"{url}\"\n"));
        let server = network.start(&[]);
        wait_for_log(&server, words).await;
        let found = network.doctor("credentials", &[]).await;
        assert!(found[0].contains(words), "{found:?}");
        let log = server.terminate().await;
        assert!(!log.contains("PLANTED@wrong") && !log.contains("PLANTED%40"), "{log}");
    }
    assert!(network.proxy.refused() > 0 && network.proxy.taken().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_cannot_be_one_is_refused_before_the_start_without_its_password() {
    let network = Network::new().await;
    for (ses, variable, words) in [
        ("proxy = \"https://u:PLANTED%40x@proxy:3128\"\n", "", "must begin with http://"),
        ("proxy = \"u:PLANTED%40x@proxy:3128\"\n", "", "ses.proxy"),
        ("proxy = \"http://u:PLANTED%40x\"\n", "", "ses.proxy"),
        ("proxy = \"http://u:PLANTED%40x@proxy:3128\n", "", "not valid TOML"),
        ("", "socks5://u:PLANTED%40x@proxy:1080", "HTTPS_PROXY"),
    ] {
        network.site.configure("", ses);
        let mut command = network.site.command(&["serve", "--check"]);
        command.env("HTTPS_PROXY", variable);
        let Finished { code, out, err } = Finished::run(command).await;
        assert!(code != 0 && err.contains(words), "{ses}{variable}: {code} {err}");
        assert!(!err.contains("PLANTED") && !out.contains("PLANTED"), "{ses}: {out}{err}");
    }
    // Commands that make no calls to the outside do not use it.
    network.site.configure("", "");
    let mut command = network.site.command(&["org", "list"]);
    command.env("HTTPS_PROXY", "socks5://proxy:1080");
    if !crate::kit::is_on_postgres() {
        assert_eq!(Finished::run(command).await.code, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_go_through_a_proxy_only_if_it_is_set_for_them() {
    let network = Network::new().await;
    let receiver = Receiver::start(Reply::Status(200)).await;
    let add = ["webhook", "add", "--org", "acme", &receiver.url];
    network.site.done(&add);
    let endpoint = format!("endpoint = \"{}\"\n", network.site.simulator.endpoint());
    let variables = [("HTTPS_PROXY", network.url())];
    let variables = variables.each_ref().map(|(name, url)| (*name, url.as_str()));
    let through = format!("POST {}", receiver.url);
    for (count, (webhooks, is_proxied)) in [
        (String::new(), false),
        // It is for https, and never for this machine.
        ("[webhooks]\nproxy = \"environment\"\n".to_owned(), false),
        (format!("[webhooks]\nproxy = \"{}\"\n", network.url()), true),
    ]
    .into_iter()
    .enumerate()
    {
        network.site.configure("", &format!("{endpoint}{webhooks}"));
        let server = network.start(&variables);
        let id = server.send(&message()).await;
        server.wait_for(&id, "sent").await;
        receiver.wait_for(count + 1).await;
        assert_eq!(network.proxy.taken().contains(&through), is_proxied, "{webhooks}");
        let found = network.doctor("webhook 1 of acme", &[]).await;
        let said = format!("the proxy http://{} (webhooks.proxy)", network.proxy.address);
        assert_eq!(found[0].contains(&said), is_proxied, "{found:?}");
        require_no_secret(&server.terminate().await);
    }
}

/// Endpoint of a container's credentials, which answers every request.
async fn container_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/credentials", listener.local_addr().unwrap());
    let body = format!(
        "{{\"AccessKeyId\":\"{AWS_ACCESS_KEY}\",\"SecretAccessKey\":\"{AWS_SECRET}\",\
         \"Token\":\"\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
    );
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            // Of a GET, all comes at once.
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_credentials_are_fetched_directly_and_a_role_through_the_proxy() {
    let network = Network::new().await;
    network.site.configure("", &format!("proxy = \"{}\"\n", network.url()));
    let without_keys = |variables: &[(&str, &str)]| {
        let script = "unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY;";
        let mut command = network.site.service_after(script);
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_CONFIG_FILE", "/dev/null");
        command.env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        network.site.start_by(network.in_environment(command, variables))
    };
    let endpoint = container_endpoint().await;
    let server = without_keys(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &endpoint)]);
    // Its token, which is empty, is not what the simulator knows; that it is asked shows the keys.
    let end = Instant::now() + PATIENCE;
    while !network.proxy.taken().contains(&ACCOUNT.to_owned()) {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.terminate().await;
    assert!(
        network.proxy.taken().iter().all(|line| line == ACCOUNT),
        "{:?}",
        network.proxy.taken()
    );

    let profile = network.site.directory().join("config");
    let text = format!(
        "[profile base]\naws_access_key_id = {AWS_ACCESS_KEY}\naws_secret_access_key = {AWS_SECRET}\n\
         [profile mail]\nsource_profile = base\nrole_arn = arn:aws:iam::1:role/mail\n"
    );
    std::fs::write(&profile, text).unwrap();
    let variables = [("AWS_CONFIG_FILE", profile.to_str().unwrap()), ("AWS_PROFILE", "mail")];
    let server = without_keys(&variables);
    let sts = "CONNECT sts.eu-west-1.amazonaws.com:443".to_owned();
    while !network.proxy.taken().contains(&sts) {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
