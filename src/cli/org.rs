//! `org`: organisations.

use std::fmt::Write as _;

use clap::Args;

use crate::admin::message::QueuedMessages;
use crate::admin::organisation::{
    Limits, Organisation, OrganisationRemoved, Organisations, UsageOfMonth,
};
use crate::admin::{OrganisationRemove, OrganisationUsage};
use crate::cli::confirmation::{Confirmed, ENDS_BY_ITSELF, on_all_nodes};
use crate::cli::connect::Session;
use crate::cli::error::CliError;
use crate::cli::output::Table;

pub(super) async fn remove(
    session: &Session,
    given: Confirmed<OrganisationRemove>,
) -> Result<String, CliError> {
    let name = given.call.name.clone();
    let what = format!("Removing the organisation {name}");
    let messages = QueuedMessages::OfOrganisation { name, key: None, domain: None };
    let answer = given.make(session, messages, &what).await?;
    on_all_nodes(session.show(&answer, removed), &answer.nodes_without_answer, ENDS_BY_ITSELF)
}

pub(super) fn added(added: &Organisation) -> String {
    format!(
        "added {0}; next: pillarbox domain add --org {0} DOMAIN, pillarbox key add --org {0}\n",
        added.name
    )
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
    let mut table = Table::new(["ID", "NAME", "LIMITS"]);
    for organisation in &list.organisations {
        let id = organisation.id.to_string();
        table.row([&id, &organisation.name, &limits(organisation)]);
    }
    table.or("no organisations; pillarbox org add NAME adds one")
}

fn removed(removed: &OrganisationRemoved) -> String {
    format!(
        "removed {}: keys revoked: {}, domains withdrawn: {}, queued messages cancelled: {}, calls \
         under way, not tried again: {}; its records stay\n",
        removed.name,
        removed.keys_revoked,
        removed.domains_removed,
        removed.messages_cancelled,
        removed.calls_under_way
    )
}
