//! A message all the way: accepted and stored by the running service, sent, and its delivery event
//! back on its record.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::doctor::Report;
use crate::error::CliError;
use pillarbox_admin::checks::Finding;
use pillarbox_admin::client::{CallError, Client};
use pillarbox_admin::message::MessageShown;
use pillarbox_admin::test_send::{MessageForm, TestSent};
use pillarbox_admin::{MessageShow, TestSend};

const ABOUT: &str = "sending";
const DELIVERY: &str = "delivery event";
/// Pause between two reads of the message.
const PAUSE: Duration = Duration::from_millis(500);

/// Inputs of a test.
pub(super) struct DeliveryTest {
    pub(super) client: Client,
    pub(super) wait: Duration,
    pub(super) waits_for_events: bool,
}

impl DeliveryTest {
    /// Sends a message in each form in which SES gets messages.
    pub(super) async fn run(
        self,
        from: Option<String>,
        report: &mut Report,
    ) -> Result<(), CliError> {
        for form in [MessageForm::Simple, MessageForm::Raw] {
            let sent = match self.client.call(&TestSend { from: from.clone(), form }).await {
                Ok(sent) => sent,
                Err(CallError::Refused(refusal)) => {
                    let advice = "correct that, or name another sender with --from";
                    report.add(Finding::not_ok(ABOUT, refusal.message, advice));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            self.follow(&sent, form, report).await?;
        }
        Ok(())
    }

    /// Reads a message until there is nothing more to wait for.
    async fn follow(
        &self,
        sent: &TestSent,
        form: MessageForm,
        report: &mut Report,
    ) -> Result<(), CliError> {
        report.progress(&format!("accepted {} from {} to {}", sent.id, sent.from, sent.to));
        let end = Instant::now() + self.wait;
        let mut shown = String::new();
        loop {
            let message = self.client.call(&MessageShow { id: sent.id.clone() }).await?;
            let state = state(&message);
            if state != shown {
                report.progress(&state);
                shown = state;
            }
            let over = Instant::now() >= end;
            if let Some(findings) = self.judge(sent, form, &message, over) {
                report.add_all(findings);
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }

    /// Verdict on the message's state; `None` if there is more to wait for.
    fn judge(
        &self,
        sent: &TestSent,
        form: MessageForm,
        message: &MessageShown,
        over: bool,
    ) -> Option<Vec<Finding>> {
        let kind = match form {
            MessageForm::Simple => "",
            MessageForm::Raw => ", sent raw,",
        };
        let record = &message.view.message;
        let wait = humantime::format_duration(self.wait);
        let show = format!("for more, run: pillarbox message show {}", sent.id);
        let why = record
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!(": {} ({})", error.message, error.code));
        if record.status != "sent" {
            let is_final = record.status == "failed" || record.status == "suppressed";
            let message = if is_final {
                format!("the message has the status {}{why}", record.status)
            } else if over {
                format!("the message is still {} after {wait}{why}", record.status)
            } else {
                return None;
            };
            return Some(vec![Finding::not_ok(ABOUT, message, show)]);
        }
        let attempts = match record.attempts {
            1 => "at the first attempt".to_owned(),
            more => format!("after {more} attempts"),
        };
        let accepted = format!("SES accepted {}{kind} from {} {attempts}", sent.id, sent.from);
        let accepted = Finding::ok(ABOUT, accepted);
        let event = |wanted| message.events.iter().find(|event| event.event_type == wanted);
        let outcome = if let Some(event) = event("delivery") {
            Finding::ok(DELIVERY, format!("the message was delivered at {}", event.occurred_at))
        } else if let Some(event) = event("bounce").or_else(|| event("reject")) {
            Finding::not_ok(DELIVERY, format!("there was a {}", event.event_type), show)
        } else if !self.waits_for_events {
            Finding::warning(
                DELIVERY,
                "pillarbox reads no events, so it cannot see whether the message was delivered",
                "run pillarbox aws setup, or set ses.events.queue_url",
            )
        } else if over {
            Finding::not_ok(
                DELIVERY,
                format!("none arrived within {wait}"),
                "see the checks of the configuration set, the event destination and the queue above, \
                 and check whether the topic may write to the queue",
            )
        } else {
            return None;
        };
        Some(vec![accepted, outcome])
    }
}

fn state(message: &MessageShown) -> String {
    let events: Vec<_> = message.events.iter().map(|event| event.event_type.as_str()).collect();
    match (message.view.message.status.as_str(), events.as_slice()) {
        (status, []) => status.to_owned(),
        (status, events) => format!("{status}, with the events: {}", events.join(", ")),
    }
}
