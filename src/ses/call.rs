//! The calls other than `SendEmail`, in AWS's JSON and query protocols.
//!
//! Those of SES wait for their turn within one call a second, its own limit; those of other
//! services do not count towards it. Each is made once, and answers what it asked for or a
//! `CallError`. Knows no operation in particular.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use roxmltree::Node;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use crate::ses::error::CallError;
use crate::ses::query::{self, FORM, Service};
use crate::ses::request::{Call, CallOptions, JSON, Reply};
use crate::ses::{SesClient, joined};

/// Between the starts of two calls (SES API quotas: "one request per second" for every action
/// but `SendEmail` and its kin).
const INTERVAL: Duration = Duration::from_secs(1);

impl SesClient {
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
        self.inner.spacing.turn().await;
        let call = Call { service: "ses", method, url: &url, headers, body };
        Ok(self.inner.transport.call(&call).await?)
    }

    /// Calls `action` of a service in `region`, the client's own if none is named. `read` takes
    /// what it needs from the answer's root, and gives `None` where it is not there.
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
            body: query::form(service, action, parameters),
        };
        let reply = transport.call_on(CallOptions { region, ..own }, &call).await?;
        accepted(&reply)?;
        let body = reply.body.map_err(CallError::Unreadable)?;
        query::answer(&body, read)
            .map_err(|what| CallError::Unreadable(format!("{action}: {what}")))
    }
}

/// Gives out one start a second, in the order asked for.
#[derive(Debug, Default)]
pub(super) struct CallSpacing {
    next: Mutex<Option<Instant>>,
}

impl CallSpacing {
    /// Returns when the caller may make its call.
    pub(super) async fn turn(&self) {
        sleep_until(self.reserve()).await;
    }

    fn reserve(&self) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + INTERVAL);
        turn
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
    // The parser's own message may repeat what it read; where it stopped is enough.
    serde_json::from_slice(body).map_err(|error| {
        CallError::Unreadable(format!("line {}, column {}", error.line(), error.column()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::query::text;
    use crate::ses::stub::{Answer, Server, client};

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
        assert_eq!(crate::ses::error::AwsError::read(&reply).stem(), "ExpiredToken");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_start_a_second_apart_however_many_ask() {
        let spacing = CallSpacing::default();
        let start = Instant::now();
        let turns = async || {
            spacing.turn().await;
            start.elapsed()
        };
        let (first, second, third) = tokio::join!(turns(), turns(), turns());
        assert_eq!([first, second, third].map(|turn| turn.as_secs()), [0, 1, 2]);
        tokio::time::advance(INTERVAL * 10).await;
        let idle = start.elapsed();
        assert_eq!(turns().await, idle, "after a pause nobody waits");
    }
}
