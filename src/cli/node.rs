//! `node`: the nodes on one database.

use clap::Subcommand;

use crate::admin::node::{Node as Listed, NodeDrain, NodeForget, NodeList, Nodes};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::Table;
use crate::store::DrainOrder;

#[derive(Debug, Subcommand)]
pub(super) enum Node {
    /// List the nodes on the database, as the node on this machine sees them.
    List,
    /// Have a node accept no more messages and send what it holds. It can be stopped without loss
    /// once it holds none. Its next start accepts messages again.
    Drain {
        /// Name of the node (`cluster.node`).
        name: String,
        /// Have it accept messages again.
        #[arg(long)]
        undo: bool,
    },
    /// Remove a node whose machine is gone, so that the messages that it held fail at once and not
    /// only after `cluster.dead_after`.
    Forget {
        /// Name of the node (`cluster.node`).
        name: String,
    },
}

impl Commands for Node {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::List => session.run(NodeList {}, table).await,
            Self::Drain { name, undo } => {
                let drain = if undo { DrainOrder::End } else { DrainOrder::Begin };
                let drained = session.run(NodeDrain { name, drain }, |drained| {
                    let name = &drained.name;
                    match drained.drain {
                        DrainOrder::Begin => format!(
                            "node {name} accepts no more messages within a second; it can be \
                             stopped once it holds none: pillarbox node list\n"
                        ),
                        DrainOrder::End => {
                            format!("node {name} accepts messages again within a second\n")
                        }
                    }
                });
                drained.await
            }
            Self::Forget { name } => {
                let forgotten = session.run(NodeForget { name }, |forgotten| {
                    let name = &forgotten.name;
                    format!(
                        "node {name} is removed; the messages that it held fail within seconds: \
                         pillarbox message list --status failed\n"
                    )
                });
                forgotten.await
            }
        }
    }
}

fn table(list: &Nodes) -> String {
    let mut table = Table::new([
        "NODE",
        "STATE",
        "VERSION",
        "SINCE",
        "PENDING",
        "PACE",
        "DUTIES",
        "CONDITIONS",
    ]);
    for node in &list.nodes {
        let name = if node.answers { format!("{} *", node.name) } else { node.name.clone() };
        table.row([
            &name,
            &state(node),
            &node.version,
            &node.started_at,
            &node.pending_messages.to_string(),
            &format!("{:.0} %", node.share * 100.0),
            &listed(&node.duties),
            &listed(&node.conditions),
        ]);
    }
    table.or("no node has given a sign of life yet")
}

fn state(node: &Listed) -> String {
    match node.silent_seconds {
        Some(seconds) => format!("{} for {seconds} s", node.state),
        None => node.state.clone(),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}
