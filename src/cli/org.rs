//! `org`: organisations.

use crate::admin::OrganisationRemove;
use crate::admin::message::QueuedMessages;
use crate::admin::organisation::{Organisation, OrganisationRemoved, Organisations};
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

pub(super) fn table(list: &Organisations) -> String {
    let mut table = Table::new(["ID", "NAME", "TEST"]);
    for organisation in &list.organisations {
        let test = if organisation.test { "test" } else { "" };
        table.row([&*organisation.id.to_string(), &organisation.name, test]);
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
