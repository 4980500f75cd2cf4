//! The nodes, and the database that they work on.

use std::time::Duration;

use crate::checks::Finding;
use pillarbox_store::{
    CLOCKS_DIFFER, CONNECTIONS_OF_A_NODE, DatabaseStatus, NodeState, NodeStatus, SeenFrom, Standby,
};

/// Skew from which a clock gets a warning: no time daemon keeps both.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// Transactions that something old holds back, from which the server's cleaning is behind.
const BEHIND: i64 = 1_000_000;

/// Findings about a database and the nodes on it. Without a running service no nodes are known.
pub fn findings(database: &DatabaseStatus, nodes: &[NodeStatus]) -> Vec<Finding> {
    let mut findings = vec![server(database), standby(database), clock(database)];
    findings.extend(disk(database));
    findings.extend(connections(database, nodes.len()));
    findings.extend(cleaning(database));
    findings.extend(nodes.iter().map(node));
    findings.extend(versions(database, nodes));
    findings.extend(longest_calls(nodes));
    findings
}

fn server(database: &DatabaseStatus) -> Finding {
    const ABOUT: &str = "database";
    let schema = match database.schema {
        Some(schema) => format!("schema {schema}"),
        None => "no tables yet; the first node creates them".to_owned(),
    };
    let message = format!("PostgreSQL {}, {schema}", database.server_version);
    if database.server_version_number < DatabaseStatus::OLDEST_SERVER {
        return Finding::not_ok(ABOUT, message, "upgrade the server to PostgreSQL 15 or later");
    }
    Finding::ok(ABOUT, message)
}

fn disk(database: &DatabaseStatus) -> Option<Finding> {
    (!database.waits_for_disk).then(|| {
        Finding::not_ok(
            "database's disk",
            "the server does not wait for its own disk (fsync = off): a power loss damages the \
             database",
            "set fsync = on",
        )
    })
}

fn standby(database: &DatabaseStatus) -> Finding {
    const ABOUT: &str = "standby";
    match database.standby {
        Standby::Synchronous => Finding::ok(ABOUT, "each commit waits for a synchronous standby"),
        Standby::None => Finding::warning(
            ABOUT,
            "a commit is only on the server's disk: if that machine is lost, accepted messages are \
             lost with it",
            "give the server a synchronous standby (synchronous_standby_names), or use a \
             database service that stores each commit twice, and ignore this warning",
        ),
        Standby::Lost => Finding::not_ok(
            ABOUT,
            "commits waited for a standby, and no longer do",
            "bring the standby back, so that synchronous_standby_names of the primary names it \
             again",
        ),
    }
}

fn clock(database: &DatabaseStatus) -> Finding {
    const ABOUT: &str = "database's clock";
    let apart = Duration::from_millis(database.clock_offset_millis.unsigned_abs());
    let side = if database.clock_offset_millis < 0 { "behind" } else { "ahead of" };
    let message = format!("{:.3} seconds {side} this machine's", apart.as_secs_f64());
    let advice = "run a time daemon, such as chrony or systemd-timesyncd, on both machines";
    if apart > CLOCKS_DIFFER {
        Finding::not_ok(ABOUT, message, advice)
    } else if apart > CLOCK_WARNING {
        Finding::warning(ABOUT, message, advice)
    } else {
        Finding::ok(ABOUT, message)
    }
}

fn connections(database: &DatabaseStatus, nodes: usize) -> Option<Finding> {
    let nodes = i32::try_from(nodes.max(1)).unwrap_or(i32::MAX);
    // One more node must be able to join, and a person to connect.
    let wanted = CONNECTIONS_OF_A_NODE.saturating_mul(nodes.saturating_add(1)).saturating_add(3);
    (database.max_connections < wanted).then(|| {
        Finding::warning(
            "database connections",
            format!(
                "the server allows {} connections by ordinary users; each node needs \
                 {CONNECTIONS_OF_A_NODE}",
                database.max_connections
            ),
            format!("set max_connections of the server to at least {}", wanted + 3),
        )
    })
}

fn cleaning(database: &DatabaseStatus) -> Option<Finding> {
    let behind = database.transactions_behind;
    (behind >= BEHIND).then(|| {
        Finding::warning(
            "database vacuum",
            format!("an old transaction or replication slot holds VACUUM back by {behind} \
                     transactions, so tables grow"),
            "end long transactions (pg_stat_activity), prepared ones (pg_prepared_xacts) and unused \
             replication slots (pg_replication_slots)",
        )
    })
}

fn node(node: &NodeStatus) -> Finding {
    let about = format!("node {}", node.name);
    let itself = match node.seen_from {
        SeenFrom::Itself => " (it answers this command)",
        SeenFrom::Another => "",
    };
    let message = format!("pillarbox {}{itself}", node.version);
    match node.state {
        NodeState::Working => Finding::ok(about, message),
        NodeState::Draining => Finding::warning(
            about,
            format!("{message}, accepts no messages: an operator is draining it"),
            format!("stop it, or end the drain: pillarbox node drain --undo {}", node.name),
        ),
        NodeState::Silent(since) => Finding::not_ok(
            about,
            format!("{message}, has given no sign of life for {} seconds", since.as_secs()),
            format!(
                "start it again; if its machine is gone for good: pillarbox node forget {}",
                node.name
            ),
        ),
    }
}

/// Nodes that are behind the schema keep the next version from taking away what only they use.
fn versions(database: &DatabaseStatus, nodes: &[NodeStatus]) -> Option<Finding> {
    let schema = database.schema?;
    let old = nodes.iter().filter(|node| node.schema < schema);
    let old: Vec<_> = old.map(|node| node.name.as_str()).collect();
    (!old.is_empty()).then(|| {
        Finding::warning(
            "versions of nodes",
            format!(
                "the database has schema {schema}, and an older pillarbox runs on: {}",
                old.join(", ")
            ),
            "upgrade these nodes, one after the other",
        )
    })
}

/// Nodes whose calls may take differently long: each is given the time that its own take,
/// independent of `cluster.dead_after`.
fn longest_calls(nodes: &[NodeStatus]) -> Option<Finding> {
    let told = || nodes.iter().filter(|node| !node.least_dead_after.is_zero());
    let longest = told().max_by_key(|node| node.least_dead_after)?;
    let shortest = told().min_by_key(|node| node.least_dead_after)?;
    let said = |node: &NodeStatus| humantime::format_duration(node.least_dead_after).to_string();
    (longest.least_dead_after > shortest.least_dead_after).then(|| {
        Finding::warning(
            "longest calls",
            format!(
                "calls of node {} may still run {} after its last sign of life, but those of node \
                 {} only {}. Before the other nodes treat a node as dead, they wait until none of its \
                 calls can still run, even if cluster.dead_after is shorter",
                longest.name,
                said(longest),
                shortest.name,
                said(shortest)
            ),
            "give all nodes the same sending.request_timeout and max_request_bytes",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Verdict;
    use pillarbox_domain::time::Timestamp;
    use pillarbox_store::NodeLoad;

    fn database() -> DatabaseStatus {
        DatabaseStatus {
            server_version: "15.20".to_owned(),
            server_version_number: 150_020,
            schema: Some(2),
            standby: Standby::Synchronous,
            waits_for_disk: true,
            max_connections: 97,
            transactions_behind: 3,
            clock_offset_millis: -12,
        }
    }

    fn node(name: &str, state: NodeState) -> NodeStatus {
        NodeStatus {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            schema: 2,
            started_at: Timestamp::from_unix_millis(0),
            state,
            seen_from: SeenFrom::Another,
            least_dead_after: Duration::ZERO,
            share: 0.5,
            duties: Vec::new(),
            load: NodeLoad::default(),
        }
    }

    /// Findings that are not in order.
    fn told(database: &DatabaseStatus, nodes: &[NodeStatus]) -> Vec<(String, Verdict)> {
        let findings = findings(database, nodes).into_iter();
        let told = findings.filter(|finding| finding.verdict != Verdict::Ok);
        told.inspect(|finding| assert!(finding.advice.is_some(), "{finding:?}"))
            .map(|finding| (finding.about, finding.verdict))
            .collect()
    }

    fn only(about: &str, verdict: Verdict) -> Vec<(String, Verdict)> {
        vec![(about.to_owned(), verdict)]
    }

    #[test]
    fn everything_in_order_has_no_advice() {
        let nodes = [node("a", NodeState::Working), node("b", NodeState::Working)];
        assert_eq!(told(&database(), &nodes), []);
        assert_eq!(findings(&database(), &nodes).len(), 5);
    }

    #[test]
    fn what_is_wrong_with_the_database_is_told() {
        use Verdict::{NotOk, Warning};
        let with = |change: fn(&mut DatabaseStatus)| {
            let mut database = database();
            change(&mut database);
            told(&database, &[])
        };
        assert_eq!(with(|it| it.server_version_number = 140_012), only("database", NotOk));
        assert_eq!(with(|it| it.standby = Standby::None), only("standby", Warning));
        assert_eq!(with(|it| it.standby = Standby::Lost), only("standby", NotOk));
        assert_eq!(with(|it| it.waits_for_disk = false), only("database's disk", NotOk));
        assert_eq!(with(|it| it.clock_offset_millis = 1_001), only("database's clock", Warning));
        assert_eq!(with(|it| it.clock_offset_millis = -5_001), only("database's clock", NotOk));
        assert_eq!(with(|it| it.max_connections = 16), only("database connections", Warning));
        assert_eq!(with(|it| it.transactions_behind = BEHIND), only("database vacuum", Warning));
    }

    #[test]
    fn nodes_that_are_silent_drained_or_old_are_told() {
        let silent = node("b", NodeState::Silent(Duration::from_secs(30)));
        assert_eq!(told(&database(), &[silent]), only("node b", Verdict::NotOk));
        let drained = node("b", NodeState::Draining);
        assert_eq!(told(&database(), &[drained]), only("node b", Verdict::Warning));
        let old = NodeStatus { schema: 1, ..node("b", NodeState::Working) };
        assert_eq!(told(&database(), &[old]), only("versions of nodes", Verdict::Warning));
        let calls = |name, secs| NodeStatus {
            least_dead_after: Duration::from_secs(secs),
            ..node(name, NodeState::Working)
        };
        let nodes = [calls("a", 107), calls("b", 107), calls("old", 0)];
        assert_eq!(told(&database(), &nodes), []);
        let nodes = [calls("a", 107), calls("b", 137)];
        assert_eq!(told(&database(), &nodes), only("longest calls", Verdict::Warning));
    }
}
