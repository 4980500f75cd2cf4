//! A data file and a journal that do not belong together, as a half restored copy leaves them.

use std::fs;

use crate::damage::Damaged;
use crate::kit::PATIENCE;
use crate::site::{listening, spawn};

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_from_some_seconds_before_is_refused_with_what_to_do() {
    let damaged = Damaged::new().await;
    let directory = damaged.site.data_dir();
    let [journal, earlier, own, copy] =
        ["pillarbox.journal", "earlier", "own", "../copy.redb"].map(|name| directory.join(name));
    let process = spawn(&damaged.site);
    let base = listening(&process);
    let mut ids = vec![damaged.accepted(&base, "bob@example.org", None).await];
    fs::copy(&journal, &earlier).unwrap();
    damaged.checkpointed(&process).await;
    for _ in 0..30 {
        ids.push(damaged.accepted(&base, "bob@example.org", None).await);
    }
    // Before the next checkpoint, if the machine is quick.
    drop(process);
    fs::rename(&journal, &own).unwrap();
    fs::copy(&earlier, &journal).unwrap();
    let (code, said) = spawn(&damaged.site).wait_at_most(PATIENCE);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is older than the data file"), "{said}");
    for way_on in ["pillarbox restore BACKUP", "--accept-loss", "pillarbox backup FILE"] {
        assert!(said.contains(way_on), "{said}");
    }
    // One way on is to go without what was accepted last.
    fs::copy(directory.join("pillarbox.redb"), &copy).unwrap();
    fs::rename(&own, &journal).unwrap();
    let process = spawn(&damaged.site);
    let base = listening(&process);
    for id in &ids {
        assert_eq!(damaged.get(&base, &format!("/emails/{id}")).await.0, 200, "{id}");
    }
    drop(process);
    fs::copy(&earlier, &journal).unwrap();
    damaged.done(&["restore", "--replace", "--accept-loss", copy.to_str().unwrap()]);
    let process = spawn(&damaged.site);
    let base = listening(&process);
    assert_eq!(damaged.get(&base, &format!("/emails/{}", ids[0])).await.0, 200);
}
