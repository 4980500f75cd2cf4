//! `webhook`: endpoints that receive events.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use crate::connect::Session;
use crate::error::CliError;
use crate::output::{Columns, Table, escaped};
use pillarbox_admin::webhook::{
    Webhook, WebhookAttempt, WebhookDelivery, WebhookDeliveryPage, WebhookReplayed, WebhookSecret,
    WebhookShown, WebhookTested, Webhooks,
};
use pillarbox_admin::{WebhookAdd, WebhookTest};

#[derive(Debug, Args)]
pub(super) struct Add {
    #[command(flatten)]
    call: WebhookAdd,
    /// PEM file of certificates to check the endpoint's certificate against; the system's roots if
    /// not given.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

pub(super) async fn add(session: &Session, given: Add) -> Result<String, CliError> {
    let Add { mut call, ca } = given;
    if let Some(file) = ca {
        let read = std::fs::read_to_string(&file);
        call.authority = Some(read.map_err(|source| CliError::File { file, source })?);
    }
    session.run(call, added).await
}

pub(super) async fn test(session: &Session, call: WebhookTest) -> Result<String, CliError> {
    let id = call.id;
    let tested = session.call(call).await?;
    let report = session.show(&tested, answered);
    if tested.delivered {
        return Ok(report);
    }
    Err(CliError::Reported { report, what: format!("endpoint {id} did not accept the test event") })
}

fn added(added: &WebhookSecret) -> String {
    format!(
        "Added endpoint {}. It gets the events of {} at {}\n\nThe secret that signs its \
         deliveries:\n\n    {}\n\nThe secret is shown only once. Send a test event: pillarbox \
         webhook test {}\n",
        added.id,
        added.organisation,
        escaped(&added.url),
        added.secret.0,
        added.id
    )
}

pub(super) fn rotated(rotated: &WebhookSecret) -> String {
    let earlier = match rotated.signing {
        0 | 1 => "Earlier secrets no longer sign: give this one to the application now.".to_owned(),
        signing => format!(
            "{signing} secrets sign deliveries now; an earlier one stops 24 hours after it was \
             replaced. Give this one to the application within that time."
        ),
    };
    format!(
        "The new secret of endpoint {}:\n\n    {}\n\nThe secret is shown only once. {earlier}\n",
        rotated.id, rotated.secret.0
    )
}

pub(super) fn table(list: &Webhooks) -> String {
    let head =
        ["ID", "ORGANISATION", "STATE", "FORMAT", "WAITING", "BEHIND SINCE", "LAST ANSWER", "URL"];
    let mut table = Table::new(head);
    for one in &list.webhooks {
        let live = one.deliveries.as_ref();
        let state = match live {
            Some(live) if live.failing && one.state == "active" => "failing",
            Some(_) | None => one.state.as_str(),
        };
        let waiting = live.map(|live| live.waiting.to_string()).unwrap_or_default();
        let behind = live.and_then(|live| live.behind_since.as_deref()).unwrap_or_default();
        let answer = live.and_then(|live| live.last_answer.as_deref()).unwrap_or_default();
        let id = one.id.to_string();
        let format = &one.format;
        table.row([&id, &one.organisation, state, format, &waiting, behind, answer, &one.url]);
    }
    table.or("no endpoints; pillarbox webhook add --org NAME URL adds one")
}

pub(super) fn shown(shown: &WebhookShown) -> String {
    let mut text = table(&Webhooks { webhooks: vec![shown.webhook.clone()] });
    let columns: Columns<WebhookAttempt, 8> = [
        ("WHEN", |one| one.at.clone()),
        ("STATE", |one| one.state.clone()),
        ("EVENT", |one| one.event.clone()),
        ("TYPE", |one| one.event_type.clone()),
        ("ATTEMPT", |one| one.attempt.to_string()),
        ("TOOK", |one| format!("{} ms", one.took_millis)),
        ("ANSWER", |one| match one.body.trim() {
            "" => one.answer.clone(),
            body => format!("{}: {body}", one.answer),
        }),
        ("NEXT ATTEMPT", |one| one.next_attempt_at.clone().unwrap_or_default()),
    ];
    let attempts = Table::of(&shown.attempts, columns);
    let _ = write!(text, "\n{}", attempts.or("no attempts since the start of the service"));
    text
}

pub(super) fn deliveries(page: &WebhookDeliveryPage) -> String {
    let columns: Columns<WebhookDelivery, 7> = [
        ("STATE", |one| one.state.clone()),
        ("EVENT", |one| one.event.clone().unwrap_or_default()),
        ("TYPE", |one| one.event_type.clone().unwrap_or_default()),
        ("ATTEMPTS", |one| one.attempts.to_string()),
        ("LAST ATTEMPT", |one| one.attempted_at.clone().unwrap_or_default()),
        ("ANSWER", |one| one.answer.clone().unwrap_or_default()),
        ("NEXT ATTEMPT", |one| one.next_attempt_at.clone().unwrap_or_default()),
    ];
    Table::of(&page.deliveries, columns).or("no deliveries")
}

pub(super) fn replayed(replayed: &WebhookReplayed) -> String {
    let WebhookReplayed { id, replayed } = replayed;
    if *replayed {
        format!("endpoint {id} gets these events again\n")
    } else {
        format!("these events still wait for endpoint {id}; nothing was changed\n")
    }
}

pub(super) fn told(what: &str, one: &Webhook) -> String {
    format!("{what} endpoint {} of {} ({})\n", one.id, one.organisation, escaped(&one.url))
}

fn answered(tested: &WebhookTested) -> String {
    let WebhookTested { delivered, answer, took_millis, body } = tested;
    let verdict = if *delivered { "delivered" } else { "NOT delivered" };
    let mut text = format!("{verdict}: {} after {took_millis} ms\n", escaped(answer));
    if !body.is_empty() {
        let _ = writeln!(text, "\n{}", escaped(body));
    }
    text
}
