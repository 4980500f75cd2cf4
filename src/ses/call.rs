//! The calls other than `SendEmail`, in AWS's JSON and query protocols.
//!
//! Those of SES wait for a slot within one call a second, its own limit, all nodes together; those
//! of other services do not count towards it. Each is made once, and returns the answer or a
//! `CallError`. Knows no operation in particular.

use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use roxmltree::Node;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::CallError;
use crate::query::{self, FORM, Service};
use crate::request::{Call, CallOptions, JSON, Reply};
use crate::{SesClient, joined};

/// Between the starts of two calls (SES API quotas: "one request per second" for every action
/// but `SendEmail` and its kin).
const INTERVAL: Duration = Duration::from_secs(1);
/// The same between calls of several nodes, which learn of their slots with different delays.
const SHARED_INTERVAL: Duration = Duration::from_millis(1_250);

/// Takes the next start, the given time after the one before it, of those that all clients of one
/// account share. Returns the time until then, or what is wrong.
pub type SharedSlots = Box<dyn Fn(Duration) -> TakingSlot + Send + Sync>;
/// A slot that is being taken.
pub type TakingSlot = Pin<Box<dyn Future<Output = Result<Duration, String>> + Send>>;

impl SesClient {
    /// Has the calls other than `SendEmail` share their pace with other clients of the account, from
    /// the next one on. If a slot cannot be had, the call is not made.
    pub fn share_slots(&self, slots: SharedSlots) {
        // The first one stays: there is one cluster.
        let _ = self.inner.spacing.shared.set(slots);
    }

    /// Asks for `path` and reads the answer.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        self.ask(Method::GET, path, &[], Bytes::new()).await
    }

    /// Posts a JSON document to `path` and reads the answer.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<T, CallError> {
        self.ask(Method::POST, path, &[JSON], body).await
    }

    /// Sends a JSON document whose answer says nothing but that it was taken.
    pub(super) async fn tell(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(), CallError> {
        accepted(&self.reply(method, path, &[JSON], body).await?)
    }

    /// Deletes what is at `path`. The answer has no body that would say anything.
    pub(super) async fn delete(&self, path: &str) -> Result<(), CallError> {
        accepted(&self.reply(Method::DELETE, path, &[], Bytes::new()).await?)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> Result<T, CallError> {
        read(&self.reply(method, path, headers, body).await?)
    }

    async fn reply(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> Result<Reply, CallError> {
        let url = joined(self.inner.endpoints.ses(), path)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        self.inner.spacing.wait().await?;
        let body = body.into();
        let call = Call { service: "ses", method, url: &url, headers, body };
        Ok(self.inner.transport.call(&call).await?)
    }

    /// Calls `action` of a service in `region`, the client's own if none is named. `read` takes
    /// what it needs from the answer's root, and returns `None` if it is missing.
    pub(super) async fn query<T>(
        &self,
        service: Service,
        region: Option<&str>,
        action: &str,
        parameters: &[(&str, &str)],
        read: impl FnOnce(Node<'_, '_>) -> Option<T>,
    ) -> Result<T, CallError> {
        let transport = &self.inner.transport;
        let own = transport.options();
        let region = region.unwrap_or(own.region);
        let base = self.inner.endpoints.of(service.name, region);
        // A region comes from an ARN at times, and so from outside.
        let url = Url::parse(&format!("{base}/"))
            .map_err(|_| CallError::Unreachable(format!("no endpoint in region {region:?}")))?;
        let call = Call {
            service: service.name,
            method: Method::POST,
            url: &url,
            headers: &[FORM],
            body: query::form(service, action, parameters).into(),
        };
        let reply = transport.call_on(CallOptions { region, ..own }, &call).await?;
        accepted(&reply)?;
        let body = reply.body.map_err(CallError::Unreadable)?;
        query::answer(&body, read)
            .map_err(|what| CallError::Unreadable(format!("{action}: {what}")))
    }
}

/// Gives out one start a second, in the order asked for.
#[derive(Default)]
pub(super) struct CallSpacing {
    next: Mutex<Option<Instant>>,
    shared: OnceLock<SharedSlots>,
}

impl fmt::Debug for CallSpacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpacing").finish_non_exhaustive()
    }
}

impl CallSpacing {
    /// Returns when the caller may make its call.
    pub(super) async fn wait(&self) -> Result<(), CallError> {
        sleep_until(self.reserve()).await;
        if let Some(shared) = self.shared.get() {
            let slot = shared(SHARED_INTERVAL).await;
            let wait = slot.map_err(|error| {
                CallError::Unreachable(format!("the nodes' calls cannot be paced: {error}"))
            })?;
            sleep(wait).await;
        }
        Ok(())
    }

    fn reserve(&self) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let wait = next.map_or(now, |next| next.max(now));
        *next = Some(wait + INTERVAL);
        wait
    }
}

/// Nothing, or the refusal that an answer is.
pub(super) fn accepted(reply: &Reply) -> Result<(), CallError> {
    if reply.status.is_success() { Ok(()) } else { Err(CallError::of(reply)) }
}

/// Reads an answer, or the refusal that it is.
pub(super) fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, CallError> {
    accepted(reply)?;
    let body = reply.body.as_ref().map_err(|error| CallError::Unreadable(error.clone()))?;
    // The parser's own message may repeat what it read; its position is enough.
    serde_json::from_slice(body).map_err(|error| {
        CallError::Unreadable(format!("line {}, column {}", error.line(), error.column()))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::query::text;
    use crate::stub::{Answer, Server, client};

    const SERVICE: Service = Service { name: "sns", version: "2010-03-31" };

    /// As SNS words it (SNS API reference, "Common Errors").
    const DENIED: &str = r#"<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
  <Error>
    <Type>Sender</Type>
    <Code>AuthorizationError</Code>
    <Message>User: arn:aws:iam::123456789012:user/ann@example.com is not authorized to perform: SNS:CreateTopic on resource: arn:aws:sns:eu-west-1:123456789012:pillarbox because no identity-based policy allows the SNS:CreateTopic action</Message>
  </Error>
  <RequestId>6be1b3e6-4a5b-5f47-9d3d-d3d1c0a7d9f1</RequestId>
</ErrorResponse>"#;

    async fn asked(server: &Server, region: Option<&str>) -> Result<String, CallError> {
        let parameters = [("Name", "a b&c=\u{fc}")];
        client(&server.url())
            .query(SERVICE, region, "CreateTopic", &parameters, |root| text(root, "TopicArn"))
            .await
    }

    fn xml(status: u16, body: &str) -> Answer {
        Answer::with_type(status, "text/xml", body)
    }

    #[tokio::test]
    async fn a_call_is_a_signed_form_and_its_answer_is_read() {
        let body = r#"<CreateTopicResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
        <CreateTopicResult><TopicArn>arn:aws:sns:eu-west-1:123456789012:a&amp;b</TopicArn>
        </CreateTopicResult><ResponseMetadata><RequestId>a8dec8b3</RequestId></ResponseMetadata>
        </CreateTopicResponse>"#;
        let server = Server::start(xml(200, body)).await;
        assert_eq!(asked(&server, None).await.unwrap(), "arn:aws:sns:eu-west-1:123456789012:a&b");
        asked(&server, Some("us-east-1")).await.unwrap();
        let requests = server.requests();
        assert!(requests[0].head.starts_with("POST / HTTP/1.1\r\n"), "{}", requests[0].head);
        assert_eq!(requests[0].header("content-type"), Some("application/x-www-form-urlencoded"));
        assert_eq!(
            requests[0].body,
            b"Action=CreateTopic&Version=2010-03-31&Name=a+b%26c%3D%C3%BC"
        );
        let scope = |index: usize| requests[index].header("authorization").unwrap().to_owned();
        assert!(scope(0).contains("/eu-west-1/sns/aws4_request"), "{}", scope(0));
        assert!(scope(1).contains("/us-east-1/sns/aws4_request"), "{}", scope(1));
    }

    #[tokio::test]
    async fn a_refusal_is_read_with_its_code_and_without_addresses() {
        let server = Server::start(xml(403, DENIED)).await;
        let CallError::Refused { status, name, message } = asked(&server, None).await.unwrap_err()
        else {
            panic!("not a refusal");
        };
        assert_eq!((status, name.as_deref()), (403, Some("AuthorizationError")));
        assert!(message.contains("to perform: SNS:CreateTopic on resource"), "{message}");
        assert!(!message.contains("ann@"), "{message}");
    }

    #[tokio::test]
    async fn a_page_is_an_endpoint_without_the_call() {
        for page in ["<!doctype html>\n<html lang=en>\n<title>404 Not Found</title>", "<html/>", ""]
        {
            let server = Server::start(Answer::with_type(404, "text/html", page)).await;
            let error = asked(&server, None).await.unwrap_err();
            assert_eq!(error, CallError::NotSupported { status: 404 }, "{page}");
        }
    }

    #[tokio::test]
    async fn an_answer_of_another_shape_is_unreadable() {
        let nested = format!("{}{}", "<a>".repeat(5_000), "</a>".repeat(5_000));
        let bomb = "<!DOCTYPE a [<!ENTITY b \"bb\">]><a><TopicArn>&b;</TopicArn></a>";
        for body in ["<CreateTopicResponse/>", "{}", "", bomb, &nested] {
            let server = Server::start(xml(200, body)).await;
            let error = asked(&server, None).await.unwrap_err();
            assert!(matches!(error, CallError::Unreadable(_)), "{error:?}");
        }
    }

    #[test]
    fn expired_credentials_are_recognised_in_xml_too() {
        let body = r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>
        <Type>Sender</Type><Code>ExpiredToken</Code>
        <Message>The security token included in the request is expired</Message></Error>
        <RequestId>1</RequestId></ErrorResponse>"#;
        let reply = Reply {
            status: http::StatusCode::FORBIDDEN,
            headers: http::HeaderMap::new(),
            body: Ok(Bytes::from_static(body.as_bytes())),
        };
        assert_eq!(crate::error::AwsError::read(&reply).stem(), "ExpiredToken");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_start_a_second_apart_however_many_ask() {
        let spacing = CallSpacing::default();
        let start = Instant::now();
        let waits = async || {
            spacing.wait().await.unwrap();
            start.elapsed()
        };
        let (first, second, third) = tokio::join!(waits(), waits(), waits());
        assert_eq!([first, second, third].map(|wait| wait.as_secs()), [0, 1, 2]);
        tokio::time::advance(INTERVAL * 10).await;
        let idle = start.elapsed();
        assert_eq!(waits().await, idle, "after a pause nobody waits");
    }

    /// Slots in this process, as a store gives them to nodes.
    fn slots() -> impl Fn() -> SharedSlots {
        let next = Arc::new(Mutex::new(Instant::now()));
        move || {
            let next = Arc::clone(&next);
            Box::new(move |interval| {
                let (mut next, now) = (next.lock().unwrap(), Instant::now());
                let slot = (*next).max(now);
                *next = slot + interval;
                Box::pin(std::future::ready(Ok(slot - now)))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_several_clients_start_a_second_apart() {
        let slots = slots();
        let nodes = [(); 3].map(|()| {
            let spacing = CallSpacing::default();
            let _ = spacing.shared.set(slots());
            spacing
        });
        let start = Instant::now();
        let calls = async |node: &CallSpacing| {
            let mut starts = Vec::new();
            for _ in 0..4 {
                node.wait().await.unwrap();
                starts.push(start.elapsed());
            }
            starts
        };
        let (a, b, c) = tokio::join!(calls(&nodes[0]), calls(&nodes[1]), calls(&nodes[2]));
        let mut starts = [a, b, c].concat();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|two| two[0] + INTERVAL <= two[1]), "{starts:?}");
        assert!(starts[11] < 15 * INTERVAL, "none waits longer than for its place: {starts:?}");
    }

    #[tokio::test]
    async fn without_a_slot_no_call_is_made() {
        let server = Server::start(Answer::json(200, "{}")).await;
        let client = client(&server.url());
        client.share_slots(Box::new(|_| Box::pin(async { Err("no database".to_owned()) })));
        let error = client.account().await.unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        assert!(error.to_string().contains("no database"), "{error}");
        assert!(server.requests().is_empty());
    }
}
