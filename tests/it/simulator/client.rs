//! A small AWS client for the tests: signs with aws-sigv4, sends with reqwest.

#![expect(clippy::unwrap_used, reason = "a test's own code; clippy knows only its functions")]

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use pillarbox_simulator::{Options, Simulator};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The client's time-out; the slow fault is tested against it.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);

/// A call before it is sent; tests spoil its parts.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Call {
    pub(crate) fn header_mut(&mut self, name: &str) -> &mut String {
        let found = self.headers.iter_mut().find(|(n, _)| n.eq_ignore_ascii_case(name));
        &mut found.unwrap().1
    }

    pub(crate) fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }
}

/// Response of the simulator.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) error: Option<String>,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Status and error name, to compare at once.
    pub(crate) fn refusal(&self) -> (u16, &str) {
        (self.status, self.error.as_deref().unwrap_or_default())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) endpoint: String,
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: String,
    pub(crate) region: String,
    pub(crate) service: &'static str,
    pub(crate) signing_time: Option<SystemTime>,
}

/// Starts a simulator with `example.com` verified, and a client for it.
pub(crate) async fn start() -> (Simulator, Client) {
    start_with(Options::default()).await
}

pub(crate) async fn start_with(mut options: Options) -> (Simulator, Client) {
    options.verified.push("example.com".to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let simulator = Simulator::start(listener, options).await;
    let client = Client::new(&simulator.endpoint());
    (simulator, client)
}

impl Client {
    pub(crate) fn new(endpoint: &str) -> Self {
        // reqwest wants a TLS provider even for plain HTTP; an error says that one is set.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            // On a reused connection the client would repeat a broken call by itself.
            .pool_max_idle_per_host(0)
            .timeout(CLIENT_TIMEOUT)
            .build()
            .unwrap();
        Self {
            http,
            endpoint: endpoint.to_owned(),
            access_key_id: "simulator".to_owned(),
            secret_access_key: "simulator".to_owned(),
            region: "eu-west-1".to_owned(),
            service: "ses",
            signing_time: None,
        }
    }

    pub(crate) fn sign(&self, method: Method, path: &str, body: &[u8]) -> Call {
        self.sign_with(method, path, body, &[("content-type", "application/json")])
    }

    fn sign_with(&self, method: Method, path: &str, body: &[u8], given: &[(&str, &str)]) -> Call {
        let identity =
            Credentials::new(&self.access_key_id, &self.secret_access_key, None, None, "test")
                .into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service)
            .time(self.signing_time.unwrap_or_else(SystemTime::now))
            .settings(SigningSettings::default())
            .build()
            .unwrap()
            .into();
        let url = format!("{}{path}", self.endpoint);
        let signable = SignableRequest::new(
            method.as_str(),
            &url,
            given.iter().copied(),
            SignableBody::Bytes(body),
        )
        .unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        let signed = instructions.headers();
        let headers = given.iter().copied().chain(signed);
        let headers = headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        Call { method, path: path.to_owned(), headers, body: body.to_vec() }
    }

    /// A call of SQS, to be sent.
    pub(crate) fn sign_sqs(&self, action: &str, body: &Value) -> Call {
        let client = Self { service: "sqs", ..self.clone() };
        let target = format!("AmazonSQS.{action}");
        let headers =
            [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", target.as_str())];
        client.sign_with(Method::POST, "/", &serde_json::to_vec(body).unwrap(), &headers)
    }

    /// A call by the query protocol, in which SNS, STS and SES's API v1 are called.
    pub(crate) async fn query(&self, service: &'static str, form: &str) -> Answer {
        let client = Self { service, ..self.clone() };
        // As AWS's own library for Python has it.
        let media_type = "application/x-www-form-urlencoded; charset=utf-8";
        let given = [("content-type", media_type)];
        self.call(client.sign_with(Method::POST, "/", form.as_bytes(), &given)).await
    }

    /// A call of SQS on the simulator's queue, with further members of the request.
    pub(crate) async fn sqs(&self, action: &str, mut body: Value) -> Answer {
        let members = body.as_object_mut().unwrap();
        let url = format!("{}/000000000000/pillarbox-events", self.endpoint);
        members.entry("QueueUrl").or_insert_with(|| json!(url));
        self.call(self.sign_sqs(action, &body)).await
    }

    pub(crate) async fn try_call(&self, call: Call) -> Result<Answer, reqwest::Error> {
        let url = format!("{}{}", self.endpoint, call.path);
        let mut request = self.http.request(call.method, url).body(call.body);
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let error = response.headers().get("x-amzn-errortype");
        let error = error.map(|name| name.to_str().unwrap().to_owned());
        let bytes = response.bytes().await?;
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let body = match bytes.first() {
            None => Value::Null,
            // The query protocol answers in XML.
            Some(b'<') => text(),
            Some(_) => serde_json::from_slice(&bytes).unwrap(),
        };
        // SES names an error in a header, SQS in the body.
        let error = error.or_else(|| Some(body["__type"].as_str()?.to_owned()));
        Ok(Answer { status, error, body })
    }

    pub(crate) async fn call(&self, call: Call) -> Answer {
        self.try_call(call).await.unwrap()
    }

    pub(crate) fn sign_send(&self, body: &Value) -> Call {
        let bytes = serde_json::to_vec(body).unwrap();
        self.sign(Method::POST, "/v2/email/outbound-emails", &bytes)
    }

    pub(crate) async fn try_send(&self, body: &Value) -> Result<Answer, reqwest::Error> {
        self.try_call(self.sign_send(body)).await
    }

    pub(crate) async fn send(&self, body: &Value) -> Answer {
        self.try_send(body).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(self.sign(Method::GET, path, b"")).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(self.sign(Method::POST, path, &serde_json::to_vec(body).unwrap())).await
    }

    /// A call of the simulator's own API, unsigned.
    pub(crate) async fn control(&self, method: Method, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        self.call(Call { method, path: path.to_owned(), headers: Vec::new(), body }).await
    }
}

/// A message that is accepted.
pub(crate) fn message() -> Value {
    json!({
        "FromEmailAddress": "Ann <ann@example.com>",
        "Destination": { "ToAddresses": ["bob@example.org"] },
        "Content": { "Simple": {
            "Subject": { "Data": "Hello", "Charset": "UTF-8" },
            "Body": { "Text": { "Data": "Hi Bob", "Charset": "UTF-8" } },
        } },
    })
}

/// [`message`] with the value at a JSON pointer replaced or, with null, taken away.
pub(crate) fn message_with(pointer: &str, value: Value) -> Value {
    let mut message = message();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = message.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(key);
    } else {
        parent.insert(key.to_owned(), value);
    }
    message
}

/// A message of so many recipients.
pub(crate) fn message_to(recipients: usize) -> Value {
    let to: Vec<_> = (0..recipients).map(|n| format!("r{n}@example.org")).collect();
    message_with("/Destination/ToAddresses", json!(to))
}
