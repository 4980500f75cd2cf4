//! Rows of new forms, and nodes of the version before, which cannot read them.

use crate::FIRST_WITH_WEBHOOK_FORMATS;
use crate::postgres::connection::{Connection, Connector};
use crate::postgres::schema;
use crate::postgres::tests::nodes::{Database, until};

/// A node of the version before, as others see it.
const NODE_BEFORE: &str = "
INSERT INTO node (name, directory, place, version, schema, started_at, least_dead_after)
SELECT 'before', directory, '', '0.0.9', schema - 1, started_at, least_dead_after FROM node";

async fn versions(connection: &Connection) -> (i32, i32) {
    let row = connection.query_one("SELECT version, oldest_reader FROM cluster", &[]).await;
    let row = row.unwrap();
    (row.get(0), row.get(1))
}

#[test]
fn the_schema_has_a_step_for_each_version() {
    // Another step makes this fail: let it say the next number.
    assert_eq!(schema::version(), 12);
}

#[tokio::test]
async fn nodes_of_the_version_before_work_on_until_a_row_has_to_be_new() {
    let database = Database::new().await;
    drop(database.node("first").await);
    let connection = Connector::new(&database.server).connect().await.unwrap();
    // As the version before has left it.
    let before = "UPDATE cluster SET version = version - 1; DELETE FROM node";
    connection.batch(before).await.unwrap();
    let store = database.node("first").await;
    assert_eq!(versions(&connection).await, (schema::version(), 1), "such a node may still start");

    connection.batch(NODE_BEFORE).await.unwrap();
    until("the node is seen", async || store.nodes().len() == 2).await;
    let earlier = store.keep_nodes_off_before(FIRST_WITH_WEBHOOK_FORMATS).await.unwrap();
    assert_eq!(earlier.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["before"]);
    assert_eq!(versions(&connection).await, (schema::version(), 1));

    connection.batch("DELETE FROM node WHERE name = 'before'").await.unwrap();
    until("the node is gone", async || store.nodes().len() == 1).await;
    for _ in 0..2 {
        assert!(store.keep_nodes_off_before(FIRST_WITH_WEBHOOK_FORMATS).await.unwrap().is_empty());
        assert_eq!(versions(&connection).await, (schema::version(), FIRST_WITH_WEBHOOK_FORMATS));
    }
}
