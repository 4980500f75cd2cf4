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
    assert_eq!(requests[0].body, b"Action=CreateTopic&Version=2010-03-31&Name=a+b%26c%3D%C3%BC");
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
    for page in ["<!doctype html>\n<html lang=en>\n<title>404 Not Found</title>", "<html/>", ""] {
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
