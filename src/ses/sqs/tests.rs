use super::*;
use crate::ses::stub::{Answer, Server, client};

fn queue(server: &Server) -> SqsQueue {
    let ses = client(&server.url());
    SqsQueue::new(&ses, &format!("{}/123456789012/pillarbox", server.url())).unwrap()
}

#[tokio::test]
async fn a_receive_is_signed_for_sqs_and_its_messages_are_read() {
    let body = r#"{"Messages":[{"Attributes":{"SenderId":"x"},"Body":"{\"a\":1}","MD5OfBody":"",
        "MessageId":"m-1","ReceiptHandle":"r-1"}]}"#;
    let server = Server::start(Answer::json(200, body)).await;
    let received = queue(&server).receive(10).await.unwrap();
    let expected = Received { id: "m-1".into(), receipt: "r-1".into(), body: r#"{"a":1}"#.into() };
    assert_eq!(received, [expected]);
    let request = server.requests().remove(0);
    assert!(request.head.starts_with("POST / HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.ReceiveMessage"));
    assert_eq!(request.header("content-type"), Some("application/x-amz-json-1.0"));
    assert!(request.header("authorization").unwrap().contains("/eu-west-1/sqs/aws4_request"));
    let sent: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    let url = format!("{}/123456789012/pillarbox", server.url());
    let expected = serde_json::json!({
        "QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20,
    });
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn no_messages_is_an_answer() {
    for body in ["{}", r#"{"Messages":null}"#, r#"{"Messages":[]}"#] {
        let server = Server::start(Answer::json(200, body)).await;
        assert_eq!(queue(&server).receive(10).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_delete_goes_in_tens_and_names_what_is_still_there() {
    let body = r#"{"Successful":[{"Id":"0"}],"Failed":[{"Id":"1","SenderFault":true,
        "Code":"ReceiptHandleIsInvalid"}]}"#;
    let server = Server::start(Answer::json(200, body)).await;
    let receipts: Vec<String> = (0..12).map(|number| format!("r-{number}")).collect();
    let receipts: Vec<&str> = receipts.iter().map(String::as_str).collect();
    assert_eq!(queue(&server).delete(&receipts).await.unwrap(), ["r-1", "r-11"]);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    let entries = |index: usize| {
        let body: serde_json::Value = serde_json::from_slice(&requests[index].body).unwrap();
        body["Entries"].as_array().unwrap().len()
    };
    assert_eq!((entries(0), entries(1)), (10, 2));
}

#[tokio::test]
async fn calls_wait_for_no_turn() {
    let server = Server::start(Answer::json(200, "{}")).await;
    let queue = queue(&server);
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        queue.receive(10).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_refusal_has_its_name() {
    let refusal = r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"No such queue."}"#;
    let server = Server::start(Answer::json(400, refusal)).await;
    let error = queue(&server).receive(10).await.unwrap_err();
    let CallError::Refused { name, .. } = &error else { panic!("{error:?}") };
    assert_eq!(name.as_deref(), Some("QueueDoesNotExist"));
}

#[test]
fn the_region_is_the_queues_own_where_its_url_is_awss() {
    let regions = [
        ("sqs.eu-west-1.amazonaws.com", Some("eu-west-1")),
        ("sqs.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
        ("us-west-2.queue.amazonaws.com", Some("us-west-2")),
        ("sqs-fips.us-east-1.amazonaws.com", Some("us-east-1")),
        ("sqs.eu-central-1.api.aws", Some("eu-central-1")),
        ("vpce-0a1b.sqs.eu-west-1.vpce.amazonaws.com", Some("eu-west-1")),
        ("127.0.0.1", None),
        ("sqs.eu-west-1.amazonaws.com.evil.example", None),
        ("localhost", None),
        ("email.eu-west-1.amazonaws.com", None),
    ];
    for (host, region) in regions {
        assert_eq!(region_of(host), region, "{host}");
    }
}

#[tokio::test]
async fn a_queue_is_asked_about_at_its_own_host() {
    let answer = Answer::json(200, r#"{"Attributes":{"ApproximateNumberOfMessages":"7"}}"#);
    let server = Server::start(answer).await;
    let elsewhere = client("http://127.0.0.1:1");
    let queue = SqsQueue::new(&elsewhere, &format!("{}/123456789012/q", server.url())).unwrap();
    let attributes = queue.attributes().await.unwrap();
    assert_eq!(attributes["ApproximateNumberOfMessages"], "7");
    let request = server.requests().remove(0);
    assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.GetQueueAttributes"));
}

#[tokio::test]
async fn a_queue_is_found_by_name_or_is_not_there() {
    let answer = Answer::json(200, r#"{"QueueUrl":"https://x.org/123456789012/q"}"#);
    let server = Server::start(answer).await;
    let url = client(&server.url()).queue_url("q").await.unwrap();
    assert_eq!(url.as_deref(), Some("https://x.org/123456789012/q"));
    let request = server.requests().remove(0);
    assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.GetQueueUrl"));
    assert_eq!(request.body, br#"{"QueueName":"q"}"#);
    assert!(request.header("authorization").unwrap().contains("/eu-west-1/sqs/aws4_request"));

    let body = r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist",
        "message":"The specified queue does not exist."}"#;
    let server = Server::start(Answer::json(400, body)).await;
    assert_eq!(client(&server.url()).queue_url("q").await, Ok(None));
}
