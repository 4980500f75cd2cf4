//! `org`: organisations.

use std::fmt::Write as _;

use clap::Args;

use crate::confirmation::{Confirmed, ENDS_BY_ITSELF, on_all_nodes};
use crate::connect::Session;
use crate::error::CliError;
use crate::output::Table;
use pillarbox_admin::message::QueuedMessages;
use pillarbox_admin::organisation::{
    Limits, Organisation, OrganisationPaused, OrganisationRemoved, OrganisationResumed,
    Organisations, Paused, UsageOfMonth,
};
use pillarbox_admin::{
    OrganisationAdd, OrganisationPause, OrganisationRemove, OrganisationResume, OrganisationUsage,
};

pub(super) async fn remove(
    session: &Session,
    given: Confirmed<OrganisationRemove>,
) -> Result<String, CliError> {
    let name = given.call.name.clone();
    let what = format!("Removing the organisation {name}");
    let messages = QueuedMessages::OfOrganisation { name, key: None, domain: None };
    if let Some(told) = given.confirmation.ask(session, messages, &what).await? {
        return Ok(told);
    }
    let answer = session.call(given.call).await?;
    on_all_nodes(session.show(&answer, removed), &answer.nodes_without_answer, ENDS_BY_ITSELF)
}

/// Effect of a pause on a node that did not answer.
const PAUSES_BY_ITSELF: &str = "a node that does not answer starts no more calls once it reaches \
                                the database again or has been without it for 20 seconds; its \
                                messages are not counted here";
/// The same for the end of a pause.
const RESUMES_BY_ITSELF: &str =
    "a node that does not answer sends again as soon as it reaches the database";

pub(super) async fn pause(session: &Session, call: OrganisationPause) -> Result<String, CliError> {
    let answer = session.call(call).await?;
    on_all_nodes(session.show(&answer, paused), &answer.nodes_without_answer, PAUSES_BY_ITSELF)
}

pub(super) async fn resume(
    session: &Session,
    call: OrganisationResume,
) -> Result<String, CliError> {
    let answer = session.call(call).await?;
    on_all_nodes(session.show(&answer, resumed), &answer.nodes_without_answer, RESUMES_BY_ITSELF)
}

pub(super) async fn add(session: &Session, call: OrganisationAdd) -> Result<String, CliError> {
    let service = &session.service;
    session
        .run(call, |Organisation { name, .. }| {
            format!(
                "added {name}; next:\n  pillarbox domain add{service} --org {name} DOMAIN\n  \
                 pillarbox key add{service} --org {name}\n"
            )
        })
        .await
}

#[derive(Debug, Args)]
pub(super) struct Usage {
    #[command(flatten)]
    call: OrganisationUsage,
    /// Print it as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

pub(super) async fn usage(session: &Session, given: Usage) -> Result<String, CliError> {
    let Usage { call, csv } = given;
    session.run(call, if csv { in_csv } else { used }).await
}

/// Names have no character that CSV would have to quote.
fn in_csv(usage: &UsageOfMonth) -> String {
    let mut text = String::from("month,organisation,recipients\n");
    for one in &usage.organisations {
        let _ = writeln!(text, "{},{},{}", usage.month, one.organisation, one.recipients);
    }
    text
}

fn used(usage: &UsageOfMonth) -> String {
    let mut table = Table::new(["ORGANISATION", "RECIPIENTS"]);
    for one in &usage.organisations {
        table.row([&one.organisation, &one.recipients.to_string()]);
    }
    table.or(&format!("nothing was accepted in {}", usage.month))
}

pub(super) fn limited(organisation: &Organisation) -> String {
    format!("limits of {}: {}\n", organisation.name, limits(organisation))
}

/// Returns the limits of an organisation in words.
fn limits(organisation: &Organisation) -> String {
    let Some(Limits { per_minute, per_hour, per_day, per_month }) = organisation.limits else {
        return "none".to_owned();
    };
    let all = [("minute", per_minute), ("hour", per_hour), ("day", per_day), ("month", per_month)];
    let set = all.into_iter().filter_map(|(period, limit)| Some(format!("{}/{period}", limit?)));
    set.collect::<Vec<_>>().join(", ")
}

pub(super) fn table(list: &Organisations) -> String {
    let mut table = Table::new(["ID", "NAME", "TEST", "PAUSED", "LIMITS"]);
    for organisation in &list.organisations {
        let id = organisation.id.to_string();
        let test = if organisation.test { "test" } else { "" };
        let paused = organisation.paused.as_ref().map_or_else(|| "no".to_owned(), since);
        table.row([&*id, &organisation.name, test, &paused, &limits(organisation)]);
    }
    table.or("no organisations; pillarbox org add NAME adds one")
}

fn since(Paused { since, requests }: &Paused) -> String {
    format!("since {since}; its send requests are {requests}")
}

fn paused(paused: &OrganisationPaused) -> String {
    let OrganisationPaused { name, messages_waiting, calls_under_way, .. } = paused;
    let end = match &paused.first_end {
        Some(end) => format!(
            "; if {name} is still paused at {end}, the first waiting message fails, because its \
             time limit runs out"
        ),
        None => "; waiting messages fail once sending.retry_for is over".to_owned(),
    };
    format!(
        "{name} has been paused {}; messages that wait: {messages_waiting}, calls under way: \
         {calls_under_way}{end}\n",
        since(&paused.paused)
    )
}

fn resumed(resumed: &OrganisationResumed) -> String {
    let OrganisationResumed { name, messages_waiting, .. } = resumed;
    format!("{name} is not paused; messages that wait: {messages_waiting}\n")
}

fn removed(removed: &OrganisationRemoved) -> String {
    format!(
        "removed {}: keys revoked: {}; domains removed: {}; queued messages cancelled: {}; calls \
         under way (not tried again): {}; its records stay\n",
        removed.name,
        removed.keys_revoked,
        removed.domains_removed,
        removed.messages_cancelled,
        removed.calls_under_way
    )
}
