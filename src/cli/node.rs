//! `node`: the nodes on one database.

use crate::output::{Columns, Table};
use pillarbox_admin::node::{Node, Nodes};
use pillarbox_admin::{NodeDrain, NodeForget};
use pillarbox_store::DrainOrder;

pub(super) fn drained(NodeDrain { name, drain }: &NodeDrain) -> String {
    match drain {
        DrainOrder::Begin => format!(
            "node {name} drains: after about five seconds it accepts no new messages. Stop it once \
             it holds none; to see how many it holds: pillarbox node list\n"
        ),
        DrainOrder::End => format!("node {name} accepts messages again within a second\n"),
    }
}

pub(super) fn forgotten(NodeForget { name }: &NodeForget) -> String {
    format!(
        "node {name} is removed; the messages that it held fail within seconds; to list them: \
         pillarbox message list --status failed\n"
    )
}

pub(super) fn table(list: &Nodes) -> String {
    let columns: Columns<Node, 8> = [
        ("NODE", |node| if node.answers { format!("{} *", node.name) } else { node.name.clone() }),
        ("STATE", state),
        ("VERSION", |node| node.version.clone()),
        ("SINCE", |node| node.started_at.clone()),
        ("PENDING", |node| node.pending_messages.to_string()),
        ("PACE", |node| format!("{:.0} %", node.share * 100.0)),
        ("DUTIES", |node| listed(&node.duties)),
        ("CONDITIONS", |node| listed(&node.conditions)),
    ];
    Table::of(&list.nodes, columns).or("no node has given a sign of life yet")
}

fn state(node: &Node) -> String {
    match node.silent_seconds {
        Some(seconds) => format!("{} for {seconds} s", node.state),
        None => node.state.clone(),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}
