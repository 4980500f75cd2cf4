//! Destinations of commands: never the data file, and no existing file without `--force`.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::kit::{Site, is_on_postgres, message, pillarbox};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The data file's own path, and links to it.
fn names_of_the_data_file(site: &Site) -> Vec<PathBuf> {
    let file = site.data_dir().join("pillarbox.redb");
    let names = ["symlink", "hardlink", "linked"].map(|name| site.directory().join(name));
    symlink(&file, &names[0]).unwrap();
    fs::hard_link(&file, &names[1]).unwrap();
    symlink(site.data_dir(), &names[2]).unwrap();
    let [symlink, hardlink, directory] = names;
    vec![file, symlink, hardlink, directory.join("pillarbox.redb")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_missing_is_named() {
    let site = Site::new().await;
    let directory = site.directory().join("backups");
    let file = directory.join("today");
    for command in [&["backup", text(&file)][..], &["suppression", "export", text(&file)]] {
        let error = error(&site.run(command));
        let expected = format!("there is no directory {}; create it", directory.display());
        assert!(error.contains(&expected), "{command:?}: {error}");
    }
    assert!(!directory.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_writes_to_the_data_file_whatever_it_is_called() {
    let site = Site::new().await;
    site.done(&["suppression", "add", "--all", "gone@example.org"]);
    let names = names_of_the_data_file(&site);
    let refuse = |command: &[&str]| {
        let error = error(&site.run(command));
        assert!(error.contains("is the data file"), "{command:?}: {error}");
    };
    let writes = || {
        for name in &names {
            refuse(&["suppression", "export", "--all", text(name)]);
            refuse(&["suppression", "export", "--force", text(name)]);
            refuse(&["backup", text(name)]);
            refuse(&["backup", "--force", text(name)]);
        }
    };
    writes();
    for name in &names {
        refuse(&["restore", text(name)]);
        refuse(&["restore", "--replace", text(name)]);
    }
    let server = site.start();
    writes();
    // By the socket alone, the service says which file it is.
    let socket = site.directory().join("admin.sock");
    for name in &names {
        let arguments = ["suppression", "export", "--force", text(name), "--socket", text(&socket)];
        let error = error(&pillarbox(&arguments).output().unwrap());
        assert!(error.contains("is the data file"), "{error}");
    }
    server.wait_for(&server.send(&message()).await, "sent").await;
    server.terminate().await;
    // The same for a journal beside it.
    let journal = site.data_dir().join("pillarbox.journal");
    fs::write(&journal, "precious").unwrap();
    for command in ["suppression export", "backup"] {
        let command: Vec<_> = command.split(' ').chain(["--force", text(&journal)]).collect();
        let error = error(&site.run(&command));
        assert!(error.contains("is the journal"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_replaces_a_file_only_if_it_is_told_to_and_a_link_stays() {
    let site = Site::new().await;
    site.done(&["suppression", "add", "--all", "gone@example.org"]);
    let elsewhere = site.directory().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let _server = site.start_for_commands();
    let commands = [&["suppression", "export"][..], &["backup"]];
    // A database has backups of its own.
    for command in &commands[..if is_on_postgres() { 1 } else { 2 }] {
        let (file, link) = (elsewhere.join("file"), site.directory().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let run = |more: &[&str]| site.run(&[*command, more].concat());
        for name in [&file, &link] {
            assert!(error(&run(&[text(name)])).contains("--force"));
            assert_eq!(fs::read(&file).unwrap(), b"old");
        }
        assert!(run(&["--force", text(&link)]).status.success());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_ne!(fs::read(&file).unwrap(), b"old");
        fs::remove_file(&file).unwrap();
        assert!(error(&run(&["--force", text(&link)])).contains("is a link without a target"));
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(&link).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_and_pipes_are_written_to_and_not_replaced() {
    let site = Site::new().await;
    site.done(&["suppression", "add", "--all", "gone@example.org"]);
    let _server = site.start_for_commands();
    let by_dash = site.done(&["suppression", "export", "-"]).stdout;
    // As /dev/stdout is. A link of the test's own: a program that replaces links and is run as root
    // would replace the machine's.
    let stdout = site.directory().join("stdout");
    symlink("/proc/self/fd/1", &stdout).unwrap();
    assert_eq!(site.done(&["suppression", "export", text(&stdout)]).stdout, by_dash);
    // The same as a file that the shell has made.
    let file = site.directory().join("redirected.csv");
    let config = site.directory().join("pillarbox.toml");
    let mut command =
        pillarbox(&["suppression", "export", text(&stdout), "--config", text(&config)]);
    assert!(command.stdout(fs::File::create(&file).unwrap()).status().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), by_dash);
    assert!(fs::symlink_metadata(&stdout).unwrap().is_symlink());
    let pipe = site.directory().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    site.done(&["suppression", "export", text(&pipe)]);
    assert_eq!(reader.wait_with_output().unwrap().stdout, by_dash);
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    // A backup is no stream. (A link of the test's own: on the code before, `backup --force
    // /dev/null` run as root replaces the device.)
    let null = site.directory().join("null");
    symlink("/dev/null", &null).unwrap();
    for name in [&pipe, &null].into_iter().filter(|_| !is_on_postgres()) {
        let refused = error(&site.run(&["backup", "--force", text(name)]));
        assert!(refused.contains("is not a regular file"), "{refused}");
    }
    site.done(&["suppression", "export", text(&null)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_file_behind_a_link_stays_behind_it() {
    let site = Site::new().await;
    let (link, file) = (site.data_dir().join("pillarbox.redb"), site.directory().join("far.redb"));
    fs::rename(&link, &file).unwrap();
    symlink(&file, &link).unwrap();
    let backup = site.directory().join("backup.redb");
    site.done(&["backup", text(&backup)]);
    site.done(&["compact"]);
    site.done(&["restore", "--replace", text(&backup)]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    let server = site.start();
    server.send(&message()).await;
    server.terminate().await;
}
