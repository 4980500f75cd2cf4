use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::stub::{Answer, Request, Server, client};

type Attributes = BTreeMap<String, String>;

/// As much of SES, SNS, SQS and STS as a set-up touches.
#[derive(Default)]
struct Aws {
    /// Event destinations of each configuration set, by name.
    sets: BTreeMap<String, BTreeMap<String, Value>>,
    topics: BTreeMap<String, Attributes>,
    queues: BTreeMap<String, Attributes>,
    subscriptions: Vec<(String, String)>,
    /// The actions that changed something.
    writes: Vec<String>,
    /// An action that is refused.
    denied: &'static str,
}

impl Aws {
    fn ses(&mut self, request: &Request) -> Answer {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let line = request.head.lines().next().unwrap();
        let mut words = line.split(' ');
        let method = words.next().unwrap();
        let path: Vec<_> = words.next().unwrap().split('/').skip(4).collect();
        match (method, path.as_slice()) {
            ("POST", []) => {
                let name = body["ConfigurationSetName"].as_str().unwrap();
                self.write("CreateConfigurationSet");
                self.sets.insert(name.to_owned(), BTreeMap::new());
                Answer::json(200, "{}")
            }
            (_, [set, ..]) if !self.sets.contains_key(*set) => {
                Answer::error(404, "NotFoundException", "It does not exist.")
            }
            ("GET", [_]) => Answer::json(200, "{}"),
            ("GET", [set, _]) => {
                let all = self.sets[*set].iter().map(|(name, definition)| {
                    let mut shown = definition.clone();
                    shown["Name"] = json!(name);
                    shown
                });
                let all = json!({ "EventDestinations": all.collect::<Vec<_>>() });
                Answer::json(200, &all.to_string())
            }
            ("POST" | "PUT", [set, _, ..]) => {
                let name = path.get(2).copied().or(body["EventDestinationName"].as_str()).unwrap();
                self.write("EventDestination");
                let destinations = self.sets.get_mut(*set).unwrap();
                destinations.insert(name.to_owned(), body["EventDestination"].clone());
                Answer::json(200, "{}")
            }
            other => panic!("{other:?}"),
        }
    }

    fn sqs(&mut self, action: &str, body: &Value) -> Answer {
        let name = body["QueueName"].as_str().or(body["QueueUrl"].as_str()).unwrap();
        let name = name.rsplit('/').next().unwrap().to_owned();
        let url = json!({ "QueueUrl": format!("http://aws/123456789012/{name}") }).to_string();
        match action {
            "GetQueueUrl" if self.queues.contains_key(&name) => Answer::json(200, &url),
            "GetQueueUrl" => {
                Answer::json(400, r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist"}"#)
            }
            "GetQueueAttributes" => {
                let mut all = self.queues[&name].clone();
                all.insert("QueueArn".into(), format!("arn:aws:sqs:eu-west-1:123456789012:{name}"));
                Answer::json(200, &json!({ "Attributes": all }).to_string())
            }
            "CreateQueue" | "SetQueueAttributes" => {
                self.write(action);
                let given: Attributes = serde_json::from_value(body["Attributes"].clone()).unwrap();
                self.queues.entry(name).or_default().extend(given);
                Answer::json(200, if action == "CreateQueue" { &url } else { "" })
            }
            other => panic!("{other}"),
        }
    }

    fn query(&mut self, form: &BTreeMap<String, String>) -> Answer {
        let action = form["Action"].as_str();
        let topic = form.get("TopicArn").cloned().unwrap_or_default();
        if action == self.denied {
            let error = "<Error><Type>Sender</Type><Code>AuthorizationError</Code>\
                         <Message>not authorized</Message></Error>";
            let body = format!("<ErrorResponse>{error}</ErrorResponse>");
            return Answer::with_type(403, "text/xml", &body);
        }
        let result = match action {
            "GetCallerIdentity" => {
                "<Arn>arn:aws:iam::123456789012:user/ann</Arn><Account>123456789012</Account>"
                    .to_owned()
            }
            "GetTopicAttributes" => {
                let Some(attributes) = self.topics.get(&topic) else {
                    let error =
                        "<ErrorResponse><Error><Code>NotFound</Code></Error></ErrorResponse>";
                    return Answer::with_type(404, "text/xml", error);
                };
                let entry = |(key, value): (&String, &String)| {
                    let value = value.replace('"', "&quot;");
                    format!("<entry><key>{key}</key><value>{value}</value></entry>")
                };
                attributes.iter().map(entry).collect()
            }
            "CreateTopic" => {
                self.write(action);
                let arn = format!("arn:aws:sns:eu-west-1:123456789012:{}", form["Name"]);
                let policy = r#"{"Version":"2008-10-17","Statement":[{"Sid":"owner"}]}"#;
                self.topics.insert(arn.clone(), [("Policy".into(), policy.into())].into());
                format!("<TopicArn>{arn}</TopicArn>")
            }
            "SetTopicAttributes" => {
                self.write(action);
                let attributes = self.topics.get_mut(&topic).unwrap();
                attributes.insert(form["AttributeName"].clone(), form["AttributeValue"].clone());
                String::new()
            }
            "ListSubscriptionsByTopic" => {
                let member = |(_, queue): &(String, String)| {
                    format!(
                        "<member><SubscriptionArn>s</SubscriptionArn><Protocol>sqs</Protocol>\
                         <Endpoint>{queue}</Endpoint></member>"
                    )
                };
                self.subscriptions.iter().filter(|one| one.0 == topic).map(member).collect()
            }
            "Subscribe" => {
                self.write(action);
                self.subscriptions.push((topic, form["Endpoint"].clone()));
                String::new()
            }
            other => panic!("{other}"),
        };
        let body = format!("<{action}Response><R>{result}</R></{action}Response>");
        Answer::with_type(200, "text/xml", &body)
    }

    fn write(&mut self, action: &str) {
        self.writes.push(action.to_owned());
    }
}

async fn serve(aws: &Arc<Mutex<Aws>>) -> Server {
    let aws = Arc::clone(aws);
    Server::with(move |request| {
        if request.head.is_empty() {
            return Answer::Reset;
        }
        let mut aws = aws.lock().unwrap();
        if let Some(target) = request.header("x-amz-target") {
            let body = serde_json::from_slice(&request.body).unwrap();
            aws.sqs(target.strip_prefix("AmazonSQS.").unwrap(), &body)
        } else if request.head.starts_with("POST / ") {
            aws.query(&form_urlencoded::parse(&request.body).into_owned().collect())
        } else {
            aws.ses(request)
        }
    })
    .await
}

async fn set_up(aws: &Arc<Mutex<Aws>>, mode: Mode) -> Report {
    let server = serve(aws).await;
    run(&client(&server.url()), "mail", mode).await.unwrap()
}

fn words(report: &Report) -> Vec<(&'static str, &'static str)> {
    report.steps.iter().map(|step| (step.what, step.outcome.word())).collect()
}

fn step<'a>(report: &'a Report, what: &str) -> &'a Outcome {
    &report.steps.iter().find(|step| step.what == what).unwrap().outcome
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn everything_is_made_once_and_a_second_run_changes_nothing() {
    let aws = Arc::new(Mutex::new(Aws::default()));
    let plan = set_up(&aws, Mode::DryRun).await;
    assert_eq!(aws.lock().unwrap().writes, Vec::<String>::new(), "a dry run writes nothing");
    assert!(plan.steps.iter().skip(1).all(|step| step.outcome.word() == "planned"), "{plan:?}");
    assert_eq!((plan.configuration_set, plan.queue_url), (None, None));

    let first = set_up(&aws, Mode::Apply).await;
    assert!(first.steps.iter().all(|step| !step.outcome.is_open()), "{first:?}");
    assert_eq!(first.configuration_set.as_deref(), Some("mail"));
    assert_eq!(first.queue_url.as_deref(), Some("http://aws/123456789012/mail"));
    let writes = {
        let aws = aws.lock().unwrap();
        let topic = &aws.topics["arn:aws:sns:eu-west-1:123456789012:mail"];
        let policy = document(&topic["Policy"]);
        assert_eq!(policy["Statement"][0], json!({ "Sid": "owner" }));
        let condition = &policy["Statement"][1]["Condition"]["StringEquals"];
        assert_eq!(
            condition["AWS:SourceArn"],
            "arn:aws:ses:eu-west-1:123456789012:configuration-set/mail"
        );
        let queue = &aws.queues["mail"];
        let redrive = document(&queue["RedrivePolicy"]);
        let dead_letter = "arn:aws:sqs:eu-west-1:123456789012:mail-dead-letter";
        assert_eq!(redrive["deadLetterTargetArn"], dead_letter);
        assert_eq!(queue["MessageRetentionPeriod"], "1209600");
        let sends = &document(&queue["Policy"])["Statement"][0];
        let topic = "arn:aws:sns:eu-west-1:123456789012:mail";
        assert_eq!(sends["Condition"]["ArnEquals"]["aws:SourceArn"], topic);
        let destination = &aws.sets["mail"]["mail"];
        assert_eq!(destination["SnsDestination"]["TopicArn"], topic);
        assert_eq!(
            destination["MatchingEventTypes"],
            json!(["SEND", "REJECT", "BOUNCE", "COMPLAINT", "DELIVERY", "DELIVERY_DELAY"])
        );
        aws.writes.clone()
    };

    let second = set_up(&aws, Mode::Apply).await;
    assert!(second.steps.iter().all(|step| step.outcome == Outcome::Found), "{second:?}");
    assert_eq!(aws.lock().unwrap().writes, writes);
    assert_eq!(second.queue_url, first.queue_url);
}

#[tokio::test]
async fn open_and_click_events_are_taken_out_and_those_of_others_are_reported() {
    let tracking = |name: &str| {
        json!({ "Enabled": true, "MatchingEventTypes": ["BOUNCE", name],
            "SnsDestination": { "TopicArn": "arn:aws:sns:eu-west-1:123456789012:other" } })
    };
    let aws = Arc::new(Mutex::new(Aws::default()));
    let destinations = [("mail".to_owned(), tracking("OPEN"))].into();
    aws.lock().unwrap().sets.insert("mail".to_owned(), destinations);
    let report = set_up(&aws, Mode::Apply).await;
    let done = step(&report, "event destination");
    assert!(
        matches!(done, Outcome::Completed(what) if what.contains("OPEN and CLICK")),
        "{done:?}"
    );
    let kept = aws.lock().unwrap().sets["mail"]["mail"].clone();
    assert_eq!(kept["MatchingEventTypes"].as_array().unwrap().len(), 6);
    assert_eq!(kept["SnsDestination"]["TopicArn"], report.resources.topic());

    let theirs = tracking("CLICK");
    aws.lock().unwrap().sets.get_mut("mail").unwrap().insert("theirs".into(), theirs.clone());
    let report = set_up(&aws, Mode::Apply).await;
    let done = step(&report, "event destination");
    assert!(matches!(done, Outcome::Failed(why) if why.contains("\"theirs\"")), "{done:?}");
    assert_eq!(aws.lock().unwrap().sets["mail"]["theirs"], theirs, "it is not ours to change");
}

#[tokio::test]
async fn a_missing_permission_is_named_and_the_rest_goes_on() {
    let aws = Arc::new(Mutex::new(Aws { denied: "CreateTopic", ..Aws::default() }));
    let report = set_up(&aws, Mode::Apply).await;
    let Outcome::Failed(why) = step(&report, "SNS topic") else { panic!("{report:?}") };
    assert!(why.contains("sns:CreateTopic") && why.contains("user/ann"), "{why}");
    assert_eq!(step(&report, "SQS queue"), &Outcome::Created);
    let open: Vec<_> = words(&report).into_iter().filter(|(_, word)| *word == "skipped").collect();
    assert_eq!(open, [("subscription of the queue", "skipped"), ("event destination", "skipped")]);

    aws.lock().unwrap().denied = "";
    let report = set_up(&aws, Mode::Apply).await;
    assert!(report.steps.iter().all(|step| !step.outcome.is_open()), "{report:?}");
}

#[tokio::test]
async fn a_queue_that_is_there_keeps_its_own_terms() {
    let aws = Arc::new(Mutex::new(Aws::default()));
    let own: Attributes = [("VisibilityTimeout".into(), "7".into())].into();
    aws.lock().unwrap().queues.insert("mail".into(), own);
    let report = set_up(&aws, Mode::Apply).await;
    assert!(matches!(step(&report, "SQS queue"), Outcome::Completed(_)), "{report:?}");
    let aws = aws.lock().unwrap();
    assert_eq!(aws.queues["mail"]["VisibilityTimeout"], "7");
    assert!(aws.queues["mail"].contains_key("RedrivePolicy"));
}
