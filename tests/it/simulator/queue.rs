//! SQS: receive, hide, hand out again, delete; and what is refused by which name.

#![expect(clippy::unwrap_used, reason = "a test's own code; clippy knows only its functions")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pillarbox_simulator::{
    DeliveryOrder, Fault, FaultScope, Faults, Options, Probability, QueueCounts, QueueOptions,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Answer, Client, message, start, start_with};

const NO_SUCH_QUEUE: (u16, &str) = (400, "com.amazonaws.sqs#QueueDoesNotExist");
const INVALID_VALUE: (u16, &str) = (400, "com.amazonaws.sqs#InvalidParameterValueException");
const INVALID_RECEIPT: (u16, &str) = (400, "com.amazonaws.sqs#ReceiptHandleIsInvalid");
const BAD_SIGNATURE: (u16, &str) = (403, "com.amazon.coral.service#InvalidSignatureException");

fn messages(answer: &Answer) -> &[Value] {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["Messages"].as_array().map_or(&[], Vec::as_slice)
}

fn bodies(answer: &Answer) -> Vec<&str> {
    messages(answer).iter().map(|message| message["Body"].as_str().unwrap()).collect()
}

async fn receive(client: &Client, max: u8) -> Answer {
    client.sqs("ReceiveMessage", json!({ "MaxNumberOfMessages": max })).await
}

#[tokio::test]
async fn a_message_is_sent_received_and_deleted() {
    let (simulator, client) = start().await;
    let sent = client.sqs("SendMessage", json!({ "MessageBody": "abc" })).await;
    assert_eq!(sent.body["MD5OfMessageBody"], "900150983cd24fb0d6963f7d28e17f72");
    let names = ["ApproximateReceiveCount", "SentTimestamp"];
    let answer = client.sqs("ReceiveMessage", json!({ "AttributeNames": names })).await;
    let [received] = messages(&answer) else { panic!("{answer:?}") };
    assert_eq!(received["MessageId"], sent.body["MessageId"]);
    assert_eq!(received["Body"], "abc");
    assert_eq!(received["MD5OfBody"], sent.body["MD5OfMessageBody"]);
    let attributes = received["Attributes"].as_object().unwrap();
    assert_eq!(attributes.len(), 2);
    assert_eq!(attributes["ApproximateReceiveCount"], "1");
    assert_eq!(attributes["SentTimestamp"].as_str().unwrap().len(), 13);
    let counts = simulator.queue_counts();
    assert_eq!((counts.queued, counts.in_flight, counts.deleted), (0, 1, 0));

    let empty = receive(&client, 1).await;
    assert_eq!(empty.body, json!({}), "SQS leaves the member out");
    let handle = json!({ "ReceiptHandle": received["ReceiptHandle"] });
    let deleted = client.sqs("DeleteMessage", handle.clone()).await;
    assert_eq!((deleted.status, deleted.body), (200, Value::Null));
    assert_eq!(client.sqs("DeleteMessage", handle).await.status, 200, "again is fine");
    let expected = QueueCounts { received: 1, deleted: 1, ..QueueCounts::default() };
    assert_eq!(simulator.queue_counts(), expected);
    assert_eq!(simulator.calls_total(), 0, "SES's calls are counted apart");
    assert_eq!(simulator.queue_calls_total(), 5);
}

#[tokio::test]
async fn what_is_not_deleted_comes_again_after_the_visibility_timeout() {
    let (simulator, client) = start().await;
    simulator.publish("kept").unwrap();
    let all = json!({ "VisibilityTimeout": 1, "MessageSystemAttributeNames": ["All"] });
    let first = client.sqs("ReceiveMessage", all.clone()).await;
    assert_eq!(bodies(&first), ["kept"]);
    let started = Instant::now();
    let mut waiting = all;
    waiting["WaitTimeSeconds"] = json!(20);
    let second = client.sqs("ReceiveMessage", waiting).await;
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let (first, second) = (&messages(&first)[0], &messages(&second)[0]);
    assert_eq!(second["Attributes"]["ApproximateReceiveCount"], "2");
    let first_received = "ApproximateFirstReceiveTimestamp";
    assert_eq!(second["Attributes"][first_received], first["Attributes"][first_received]);

    let delete = async |handle: &Value| {
        client.sqs("DeleteMessage", json!({ "ReceiptHandle": handle })).await.status
    };
    assert_eq!(delete(&first["ReceiptHandle"]).await, 200, "a replaced handle is no error");
    assert_eq!(simulator.queue_counts().deleted, 0, "and deletes nothing");
    delete(&second["ReceiptHandle"]).await;
    assert_eq!(simulator.queue_counts().deleted, 1);
}

#[tokio::test]
async fn a_long_poll_ends_as_soon_as_a_message_arrives_and_on_shutdown() {
    let (simulator, client) = start().await;
    let started = Instant::now();
    let long_poll = || client.sqs("ReceiveMessage", json!({ "WaitTimeSeconds": 20 }));
    let (answer, ()) = tokio::join!(long_poll(), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        simulator.publish("woken").unwrap();
    });
    assert_eq!(bodies(&answer), ["woken"]);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());

    let started = Instant::now();
    let nothing = client.sqs("ReceiveMessage", json!({ "WaitTimeSeconds": 1 })).await;
    assert!(messages(&nothing).is_empty());
    assert!(started.elapsed() >= Duration::from_secs(1));

    let started = Instant::now();
    let (answer, ()) = tokio::join!(long_poll(), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        simulator.shutdown().await;
    });
    assert!(messages(&answer).is_empty());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test]
async fn several_long_polls_share_what_arrives() {
    let (simulator, client) = start().await;
    let long_poll =
        || client.sqs("ReceiveMessage", json!({ "WaitTimeSeconds": 2, "MaxNumberOfMessages": 1 }));
    let (one, two, ()) = tokio::join!(long_poll(), long_poll(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        simulator.publish("a").unwrap();
        simulator.publish("b").unwrap();
    });
    let both: BTreeSet<_> = [bodies(&one), bodies(&two)].concat().into_iter().collect();
    assert_eq!(both, BTreeSet::from(["a", "b"]));
}

#[tokio::test]
async fn a_batch_of_deletions_answers_for_each_entry() {
    let (simulator, client) = start().await;
    for n in 0..3 {
        simulator.publish(n.to_string()).unwrap();
    }
    let received = receive(&client, 10).await;
    assert_eq!(bodies(&received), ["0", "1", "2"]);
    let handle = |n: usize| messages(&received)[n]["ReceiptHandle"].clone();
    let entries = json!([
        { "Id": "a", "ReceiptHandle": handle(0) },
        { "Id": "b", "ReceiptHandle": "made up" },
        { "Id": "c", "ReceiptHandle": handle(2) },
        { "Id": "d" },
    ]);
    let answer = client.sqs("DeleteMessageBatch", json!({ "Entries": entries })).await;
    assert_eq!(answer.body["Successful"], json!([{ "Id": "a" }, { "Id": "c" }]));
    let failed = answer.body["Failed"].as_array().unwrap();
    assert_eq!(failed.len(), 2);
    assert_eq!(failed[0]["Id"], "b");
    assert_eq!(failed[0]["Code"], "ReceiptHandleIsInvalid");
    assert_eq!(failed[0]["SenderFault"], true);
    assert_eq!(failed[1]["Code"], "MissingParameter");
    assert_eq!(simulator.queue_counts().deleted, 2);
    assert_eq!(simulator.queue_counts().in_flight, 1);

    let refused = async |entries: Value| {
        let answer = client.sqs("DeleteMessageBatch", json!({ "Entries": entries })).await;
        let name = answer.error.unwrap();
        name.strip_prefix("com.amazonaws.sqs#").unwrap().to_owned()
    };
    let many: Vec<_> = (0..11).map(|n| json!({ "Id": n.to_string() })).collect();
    assert_eq!(refused(json!([])).await, "EmptyBatchRequest");
    assert_eq!(refused(json!(many)).await, "TooManyEntriesInBatchRequest");
    assert_eq!(refused(json!([{ "Id": "a" }, { "Id": "a" }])).await, "BatchEntryIdsNotDistinct");
    assert_eq!(refused(json!([{ "Id": "a b" }])).await, "InvalidBatchEntryId");
}

#[tokio::test]
async fn deletions_fail_on_the_servers_side_on_request() {
    let queue = QueueOptions { failed_deletes: Probability::ALWAYS, ..QueueOptions::default() };
    let (simulator, client) = start_with(Options { queue, ..Options::default() }).await;
    simulator.publish("a").unwrap();
    let received = receive(&client, 1).await;
    let entry = json!({ "Id": "a", "ReceiptHandle": messages(&received)[0]["ReceiptHandle"] });
    let answer = client.sqs("DeleteMessageBatch", json!({ "Entries": [entry] })).await;
    assert_eq!(answer.body["Successful"], json!([]));
    assert_eq!(answer.body["Failed"][0]["Code"], "InternalError");
    assert_eq!(answer.body["Failed"][0]["SenderFault"], false);
    assert_eq!(simulator.queue_counts().in_flight, 1);
}

#[tokio::test]
async fn visibility_is_changed_singly_and_in_batches() {
    let (simulator, client) = start().await;
    simulator.publish("a").unwrap();
    let received = receive(&client, 1).await;
    let handle = &messages(&received)[0]["ReceiptHandle"];
    let change = json!({ "ReceiptHandle": handle, "VisibilityTimeout": 0 });
    // A message that becomes visible wakes who waits for it.
    let long_poll = client.sqs("ReceiveMessage", json!({ "WaitTimeSeconds": 2 }));
    let (again, changed) =
        tokio::join!(long_poll, client.sqs("ChangeMessageVisibility", change.clone()));
    assert_eq!((changed.status, bodies(&again)), (200, vec!["a"]));
    let late = client.sqs("ChangeMessageVisibility", change).await;
    assert_eq!(late.refusal(), (400, "com.amazonaws.sqs#MessageNotInflight"));

    let handle = &messages(&again)[0]["ReceiptHandle"];
    let entries = json!([
        { "Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 0 },
        { "Id": "b", "ReceiptHandle": "made up", "VisibilityTimeout": 0 },
        { "Id": "c", "ReceiptHandle": handle, "VisibilityTimeout": 43_201 },
    ]);
    let answer = client.sqs("ChangeMessageVisibilityBatch", json!({ "Entries": entries })).await;
    assert_eq!(answer.body["Successful"], json!([{ "Id": "a" }]));
    assert_eq!(answer.body["Failed"][0]["Code"], "ReceiptHandleIsInvalid");
    assert_eq!(answer.body["Failed"][1]["Code"], "InvalidParameterValue");
    assert_eq!(simulator.queue_counts().queued, 1);
}

#[tokio::test]
async fn the_queue_is_found_described_and_purged() {
    let (simulator, client) = start().await;
    let found = client.sqs("GetQueueUrl", json!({ "QueueName": "pillarbox-events" })).await;
    assert_eq!(found.body["QueueUrl"], simulator.queue_url());
    let other = client.sqs("GetQueueUrl", json!({ "QueueName": "other" })).await;
    assert_eq!(other.refusal(), NO_SUCH_QUEUE);

    for body in ["a", "b", "c"] {
        simulator.publish(body).unwrap();
    }
    client.sqs("SendMessage", json!({ "MessageBody": "later", "DelaySeconds": 900 })).await;
    receive(&client, 1).await;
    let names = json!({ "AttributeNames": ["All"] });
    let attributes = client.sqs("GetQueueAttributes", names).await.body["Attributes"].clone();
    assert_eq!(attributes["ApproximateNumberOfMessages"], "2");
    assert_eq!(attributes["ApproximateNumberOfMessagesNotVisible"], "1");
    assert_eq!(attributes["ApproximateNumberOfMessagesDelayed"], "1");
    assert_eq!(attributes["VisibilityTimeout"], "30");
    let arn = "arn:aws:sqs:eu-west-1:000000000000:pillarbox-events";
    assert_eq!(attributes["QueueArn"], arn);
    let unknown = client.sqs("GetQueueAttributes", json!({ "AttributeNames": ["X"] })).await;
    assert_eq!(unknown.refusal(), (400, "com.amazonaws.sqs#InvalidAttributeName"));

    assert_eq!(client.sqs("PurgeQueue", json!({})).await.status, 200);
    let status = client.control(Method::GET, "/simulator/status", &Value::Null).await.body;
    assert_eq!((&status["queued"], &status["inFlight"]), (&json!(0), &json!(0)));
    assert_eq!(status["received"], 1);
}

#[tokio::test]
async fn calls_are_signed_for_sqs_and_name_the_queue() {
    let (simulator, client) = start().await;
    let url = json!({ "QueueUrl": simulator.queue_url() });
    let good = client.sign_sqs("ReceiveMessage", &url);
    assert_eq!(client.call(good.clone()).await.status, 200);
    let mut tampered = good.clone();
    tampered.body.push(b' ');
    assert_eq!(client.call(tampered).await.refusal(), BAD_SIGNATURE);
    let mut for_ses = client.sign_send(&message());
    for_ses.headers.push(("x-amz-target".to_owned(), "AmazonSQS.ReceiveMessage".to_owned()));
    assert_eq!(client.call(for_ses).await.refusal(), BAD_SIGNATURE, "for another service");
    let unsigned = good.without_header("authorization");
    let missing = "com.amazon.coral.service#MissingAuthenticationTokenException";
    assert_eq!(client.call(unsigned).await.refusal(), (403, missing));

    for url in ["http://127.0.0.1/000000000000/other", "http://127.0.0.1", "pillarbox-events", ""] {
        let answer = client.sqs("ReceiveMessage", json!({ "QueueUrl": url })).await;
        assert_eq!(answer.refusal(), NO_SUCH_QUEUE, "{url}");
    }
    let elsewhere = json!({ "QueueUrl": "https://localhost:1/000000000000/pillarbox-events" });
    assert_eq!(client.sqs("ReceiveMessage", elsewhere).await.status, 200, "hosts are not compared");
    let nameless = client.call(client.sign_sqs("ReceiveMessage", &json!({}))).await;
    let missing = "com.amazonaws.sqs#MissingRequiredParameterException";
    assert_eq!(nameless.refusal(), (400, missing));
    let unknown = client.sqs("FlyMessage", json!({})).await;
    assert_eq!(unknown.refusal().1, "com.amazon.coral.service#UnknownOperationException");
}

#[tokio::test]
async fn values_out_of_bounds_are_refused() {
    let (_simulator, client) = start().await;
    for (member, value) in [
        ("MaxNumberOfMessages", 0),
        ("MaxNumberOfMessages", 11),
        ("WaitTimeSeconds", -1),
        ("WaitTimeSeconds", 21),
        ("VisibilityTimeout", 43_201),
    ] {
        let answer = client.sqs("ReceiveMessage", json!({ member: value })).await;
        assert_eq!(answer.refusal(), INVALID_VALUE, "{member} = {value}");
    }
    let long = json!({ "MessageBody": "x".repeat(1024 * 1024 + 1) });
    assert_eq!(client.sqs("SendMessage", long).await.refusal(), INVALID_VALUE);
    let control = client.sqs("SendMessage", json!({ "MessageBody": "\u{1}" })).await;
    assert_eq!(control.refusal(), (400, "com.amazonaws.sqs#InvalidMessageContents"));
    let handle = client.sqs("DeleteMessage", json!({ "ReceiptHandle": "x" })).await;
    assert_eq!(handle.refusal(), INVALID_RECEIPT);
}

#[tokio::test]
async fn disorder_and_repeats_lose_nothing() {
    let queue = QueueOptions {
        order: DeliveryOrder::Shuffled,
        duplicates: Probability::new(0.3).unwrap(),
        ..QueueOptions::default()
    };
    let (simulator, client) = start_with(Options { queue, seed: 5, ..Options::default() }).await;
    for n in 0..50 {
        simulator.publish(n.to_string()).unwrap();
    }
    let mut all: Vec<u32> = Vec::new();
    loop {
        let received = receive(&client, 10).await;
        if messages(&received).is_empty() {
            break;
        }
        let entry = |(n, m): (usize, &Value)| json!({ "Id": n.to_string(), "ReceiptHandle": m["ReceiptHandle"] });
        let entries: Vec<_> = messages(&received).iter().enumerate().map(entry).collect();
        client.sqs("DeleteMessageBatch", json!({ "Entries": entries })).await;
        all.extend(bodies(&received).iter().map(|body| body.parse::<u32>().unwrap()));
    }
    assert!(all.len() > 50, "some come twice though deleted: {}", all.len());
    assert!(!all.is_sorted());
    assert!(all.into_iter().collect::<BTreeSet<_>>().into_iter().eq(0..50));
}

#[tokio::test]
async fn faults_strike_the_queue_alone_on_request() {
    let (simulator, client) = start().await;
    simulator.publish("a").unwrap();
    let strike = |fault| Faults::always(fault).with_scope(FaultScope::QueueCalls);
    for (fault, expected) in [
        (Fault::Throttled, (400, "com.amazonaws.sqs#RequestThrottled")),
        (Fault::Unavailable, (503, "com.amazon.coral.service#ServiceUnavailable")),
        (Fault::InternalError, (500, "com.amazon.coral.service#InternalFailure")),
        (Fault::AccessDenied, (403, "com.amazon.coral.service#AccessDeniedException")),
    ] {
        simulator.set_faults(strike(fault));
        assert_eq!(receive(&client, 1).await.refusal(), expected);
        assert_eq!(client.send(&message()).await.status, 200, "{fault:?} spares SES");
    }
    assert_eq!(simulator.queue_counts().received, 0);
    simulator.set_faults(strike(Fault::InternalErrorAfter));
    assert_eq!(receive(&client, 1).await.status, 500);
    assert_eq!(simulator.queue_counts().in_flight, 1, "received, and the answer lost");
    simulator.set_faults(Faults::always(Fault::SendingPaused).with_scope(FaultScope::AllCalls));
    assert_eq!(receive(&client, 1).await.status, 200, "a fault that only SES knows");
    simulator.set_faults(Faults::always(Fault::Down));
    assert!(client.try_call(client.sign_sqs("ReceiveMessage", &json!({}))).await.is_err());
}

#[tokio::test]
async fn a_full_queue_refuses_and_counts() {
    let queue = QueueOptions { capacity: 1, ..QueueOptions::default() };
    let (simulator, client) = start_with(Options { queue, ..Options::default() }).await;
    simulator.publish("a").unwrap();
    simulator.publish("b").unwrap_err();
    let answer = client.sqs("SendMessage", json!({ "MessageBody": "c" })).await;
    assert_eq!(answer.refusal(), (400, "com.amazonaws.sqs#OverLimit"));
    assert_eq!(simulator.queue_counts().dropped, 2);
}
