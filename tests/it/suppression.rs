//! Lists of suppressions in and out, over the socket of a running service and on the file.

use std::fs;
use std::io::{BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pillarbox_admin::conditions::several;
use pillarbox_admin::suppression::{
    ImportMode, ImportRow, MAX_IMPORT_ROWS, Scope, SuppressionsImported,
};
use pillarbox_admin::{Admin, Call, SuppressionImport};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_store::Store;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use crate::kit::{self, Finished, NOON};

mod lists;

/// A data directory with a configuration, the organisations `acme` and `beta`, and no service.
struct Lists {
    directory: tempfile::TempDir,
}

impl Lists {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let shown = directory.path().display();
        let config = format!("data_dir = \"{shown}\"\nadmin_socket = \"{shown}/admin.sock\"\n");
        fs::write(directory.path().join("pillarbox.toml"), config).unwrap();
        let lists = Self { directory };
        let store = lists.store();
        for name in ["acme", "beta"] {
            store.add_organisation(name.parse().unwrap()).await.unwrap().unwrap();
        }
        lists
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self) -> Store {
        kit::open_store(self.directory.path(), NOON)
    }

    fn listed(&self) -> Vec<(Option<OrganisationId>, Suppression)> {
        kit::at_once(self.store().suppressions(None, usize::MAX)).unwrap().suppressions
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Finished {
        let mut command = kit::pillarbox(arguments);
        command.arg("--config").arg(self.path("pillarbox.toml"));
        Self::finish(command, input)
    }

    /// Runs a command that reads this from a pipe.
    fn finish(mut command: Command, input: &[u8]) -> Finished {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that has read enough reads no further.
        let _ = child.stdin.take().unwrap().write_all(input);
        Finished::from(child.wait_with_output().unwrap())
    }

    fn import(&self, arguments: &[&str], list: &str) -> Finished {
        self.run(&[&["suppression", "import", "-"], arguments].concat(), list.as_bytes())
    }
}

fn addresses(lists: &Lists) -> Vec<String> {
    lists.listed().into_iter().map(|(_, found)| found.address.to_string()).collect()
}

#[tokio::test]
async fn good_rows_go_in_and_every_bad_one_is_named_with_its_line_and_rule() {
    let lists = Lists::new().await;
    let list = "address,reason,since,organisation,message\n\
                Ann@Example.org,BOUNCE,2026-01-02T03:04:05.678Z,acme,01a1fd35-b382-764f-9765-f59ce8c38e64\n\
                \n\
                not an address,,,acme,\n\
                bob@example.org,,,*,\n\
                eve@example.org,spite,,acme,\n\
                eve@example.org,,yesterday,acme,\n\
                eve@example.org,,,nobody,\n\
                eve@example.org,,,acme,ses-1\n\
                eve@example.org\n\
                \"quoted, local\"@example.org,,,beta,\n\
                \"\"\"quoted, local\"\"@example.org\",complaint,,beta,\n";
    let ran = lists.import(&["--json"], list);
    assert_eq!(ran.code, 1, "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&answer["added"], &answer["alreadyThere"]), (&json!(3), &json!(0)), "{answer}");
    let refused = answer["refused"].as_array().unwrap();
    let rules = [
        (4, "is not an address"),
        (6, "bounce, complaint or manual"),
        (7, "is not a time"),
        (8, "there is no organisation nobody"),
        (9, "is not the id of a pillarbox message"),
        (10, "it names no organisation"),
        (11, "is not an address"),
    ];
    assert_eq!(refused.len(), rules.len(), "{answer}");
    for (refused, (line, rule)) in refused.iter().zip(rules) {
        assert_eq!(refused["line"], line, "{answer}");
        assert!(refused["rule"].as_str().unwrap().contains(rule), "{refused}");
    }

    let listed = lists.listed();
    let ann = &listed[1].1;
    assert_eq!(ann.address.as_str(), "ann@example.org");
    assert_eq!(ann.reason, SuppressionReason::Bounce);
    assert_eq!(ann.since.to_string(), "2026-01-02T03:04:05.678Z");
    assert_eq!(ann.cause.unwrap().to_string(), "01a1fd35-b382-764f-9765-f59ce8c38e64");
    assert_eq!(listed[0].0, None, "bob is suppressed for all");
    assert_eq!(listed[2].1.reason, SuppressionReason::Complaint);

    let ran = lists.import(&[], &list.replace('\n', "\r\n"));
    assert_eq!(ran.code, 1);
    assert_eq!(ran.out, "0 suppressed, 3 were already suppressed, 7 refused\n");
    assert!(ran.err.contains("line 4: \"not an address\" is not an address"), "{}", ran.err);
    assert_eq!(lists.listed(), listed, "what is suppressed already stays as it is");
}

#[tokio::test]
async fn a_strict_import_takes_all_or_nothing() {
    let lists = Lists::new().await;
    let ran = lists.import(&["--strict", "--org", "acme"], "a@x.org\nb\nc@x.org\n");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("line 2:") && ran.err.contains("nothing was imported"), "{ran:?}");
    assert!(lists.listed().is_empty());
    let ran = lists.import(&["--strict", "--org", "acme"], "a@x.org\nc@x.org\n");
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "2 suppressed, 0 were already suppressed, 0 refused\n")
    );
    assert_eq!(addresses(&lists), ["a@x.org", "c@x.org"]);
}

#[tokio::test]
async fn the_list_of_an_ses_account_can_be_taken_over() {
    let lists = Lists::new().await;
    // As from `aws sesv2 list-suppressed-destinations`, by jq's `@csv`.
    let list = "\"bob@example.org\",\"BOUNCE\",\"2020-04-10T21:03:05.114000+02:00\"\r\n\
                \"eve@example.org\",\"COMPLAINT\",\"2020-04-10T21:03:05Z\"\r\n";
    let ran = lists.import(&["--all"], list);
    assert_eq!(ran.code, 0, "{ran:?}");
    let listed = lists.listed();
    assert!(listed.iter().all(|(scope, _)| scope.is_none()));
    assert_eq!(listed[0].1.since.to_string(), "2020-04-10T19:03:05.114Z");
    let reasons = [SuppressionReason::Bounce, SuppressionReason::Complaint];
    assert_eq!(listed.iter().map(|(_, found)| found.reason).collect::<Vec<_>>(), reasons);
}

#[tokio::test]
async fn a_list_of_many_requests_is_taken_in_whole_and_given_out_whole() {
    let lists = Lists::new().await;
    let count = 3 * MAX_IMPORT_ROWS + 7;
    let rows: Vec<_> = (0..count).rev().map(|n| format!("user{n:06}@example.org\n")).collect();
    let rows = rows.concat();
    let ran = lists.import(&["--org", "beta", "--json"], &rows);
    assert_eq!(ran.json()["added"], count, "{ran:?}");
    let file = lists.path("out.csv");
    let file = file.to_str().unwrap();
    let ran = lists.run(&["suppression", "export", "--org", "beta", file], b"");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with(&several(count as u64, "suppression")), "{}", ran.out);
    let written = fs::read_to_string(file).unwrap();
    assert_eq!(written.lines().count(), count + 1);
    assert_eq!(written.lines().next(), Some("address,reason,since,organisation,message"));
    let ran = lists.run(&["suppression", "export", "--all", "-"], b"");
    assert_eq!((ran.code, ran.out.lines().count()), (0, 1), "{ran:?}");
    let ran = lists.import(&[], &written);
    assert_eq!(ran.out, format!("0 suppressed, {count} were already suppressed, 0 refused\n"));
    let ran = lists.import(&["--org", "acme"], &written);
    assert_eq!(ran.code, 1);
    assert!(
        ran.out.ends_with(&format!(", {count} refused\n")),
        "its rows are not acme's: {}",
        ran.out
    );
}

#[tokio::test]
async fn a_reader_that_has_enough_ends_an_export_quietly() {
    let lists = Lists::new().await;
    // More than all buffers on the way hold.
    let rows: Vec<_> = (0..8_000).map(|n| format!("user{n:05}@example.org\n")).collect();
    assert_eq!(lists.import(&["--org", "acme"], &rows.concat()).code, 0);
    let mut command = kit::pillarbox(&["suppression", "export", "-", "--config"]);
    command.arg(lists.path("pillarbox.toml"));
    let mut export = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(export.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    drop(reader);
    assert_eq!(first, "address,reason,since,organisation,message\n");
    let ended = Finished::from(export.wait_with_output().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.err.contains("ipe"), "{ended:?}");
}

#[tokio::test]
async fn a_list_from_a_pipe_needs_no_directory_that_can_be_written_to() {
    for file in ["-", "/dev/stdin"] {
        for more in [&["--org", "acme"][..], &["--org", "acme", "--strict"]] {
            let lists = Lists::new().await;
            let mut command = kit::pillarbox(&["suppression", "import", file]);
            command.args(more).arg("--config").arg(lists.path("pillarbox.toml"));
            command.env("TMPDIR", "/nonexistent");
            let ran = Lists::finish(command, b"a@x.org\nb@x.org\n");
            assert_eq!((ran.code, addresses(&lists).len()), (0, 2), "{file} {more:?}: {ran:?}");
        }
    }
}

#[tokio::test]
async fn an_export_that_cannot_be_written_leaves_the_old_file() {
    let lists = Lists::new().await;
    let ran = lists.run(&["suppression", "export", lists.path("no/dir").to_str().unwrap()], b"");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("there is no directory "), "{}", ran.err);
    let ran = lists.run(&["suppression", "import", lists.path("no").to_str().unwrap()], b"");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("/no cannot be used"), "{}", ran.err);
    let out = lists.path("out.csv");
    fs::write(&out, "precious").unwrap();
    let ran = lists.run(&["suppression", "export", "--org", "nobody", out.to_str().unwrap()], b"");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "precious");
}

#[tokio::test]
async fn what_a_removed_organisation_leaves_is_not_exported() {
    let lists = Lists::new().await;
    lists.import(&["--org", "acme"], "a@x.org\n");
    lists.import(&["--org", "beta"], "b@x.org\n");
    let acme = OrganisationId(1);
    lists.store().remove_organisation(acme).await.unwrap();
    let ran = lists.run(&["suppression", "export", "-"], b"");
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    assert!(
        ran.out.contains("b@x.org,manual,") && ran.err.contains("left out 1 suppression of"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_request_with_too_many_rows_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), NOON).unwrap().0;
    let admin = Admin::on_file(store.clone(), Clock::manual(NOON));
    let row = ImportRow {
        scope: Scope::All,
        address: "a@x.org".to_owned(),
        reason: None,
        since: None,
        message: None,
    };
    let import = |rows, mode| SuppressionImport { rows, mode }.answer(&admin);
    let refused = import(vec![row.clone(); MAX_IMPORT_ROWS + 1], ImportMode::Apply).await;
    assert!(refused.unwrap_err().message.contains("in parts"));
    let answer = import(vec![row.clone(); 2], ImportMode::Check).await;
    assert_eq!(answer, Ok(SuppressionsImported::default()));
    assert!(store.suppressions(None, 1).await.unwrap().suppressions.is_empty());
    let answer = import(vec![row; 2], ImportMode::Apply).await;
    let once = SuppressionsImported { added: 1, already_there: 1, refused: Vec::new() };
    assert_eq!(answer, Ok(once));
}

/// Suppressions that a spreadsheet or a CSV reader might misread.
fn suppressions() -> impl Strategy<Value = Vec<(Option<u32>, Suppression)>> {
    let local = r#"[=+'a-z|!-]{1,8}|"[ -~&&[^"\\]]{0,12}""#;
    let address = local.prop_filter_map("an address", |local| {
        SuppressedAddress::parse(&format!("{local}@x.org")).ok()
    });
    let reason = proptest::sample::select(vec![
        SuppressionReason::Bounce,
        SuppressionReason::Complaint,
        SuppressionReason::Manual,
    ]);
    let cause = proptest::option::of(any::<u64>());
    let since = 0..4_000_000_000_000_u64;
    let scope = proptest::option::of(1..=2_u32);
    let one = (scope, address, reason, since, cause).prop_map(
        |(scope, address, reason, since, cause)| {
            let since = Timestamp::from_unix_millis(since);
            let cause =
                cause.map(|n| format!("01a1fd35-b382-764f-9765-{:012x}", n >> 16).parse().unwrap());
            (scope, Suppression { address, reason, since, cause })
        },
    );
    proptest::collection::vec(one, 0..12)
}

async fn filled(suppressions: &[(Option<u32>, Suppression)]) -> Lists {
    let lists = Lists::new().await;
    let owned = suppressions.iter().map(|(scope, one)| (scope.map(OrganisationId), one.clone()));
    lists.store().suppress_all(owned.collect()).await.unwrap();
    lists
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_exported_imports_as_the_same_set(given in suppressions()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (from, to) = runtime.block_on(async { (filled(&given).await, filled(&[]).await) });
        let file = from.path("out.csv");
        let exported = from.run(&["suppression", "export", file.to_str().unwrap()], b"");
        prop_assert_eq!(exported.code, 0, "{:?}", exported);
        let imported = to.run(&["suppression", "import", file.to_str().unwrap()], b"");
        prop_assert_eq!(imported.code, 0, "{:?}", imported);
        prop_assert_eq!(to.listed(), from.listed());
        assert_no_formula(&file);
    }
}

fn assert_no_formula(file: &Path) {
    let mut reader = csv::Reader::from_path(file).unwrap();
    for record in reader.records() {
        for cell in &record.unwrap() {
            assert!(!cell.starts_with(['=', '+', '-', '@']), "{cell}");
        }
    }
}
