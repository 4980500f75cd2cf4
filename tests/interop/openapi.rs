//! The API's own description, as others understand it: schemathesis tries it against the service,
//! and two generators make clients of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::beside;
use crate::kit::DevProcess;

/// Number of requests that schemathesis makes of each operation in each of its ways.
const EXAMPLES: &str = if cfg!(feature = "long") { "1000" } else { "50" };

/// The service on its own simulator.
struct Dev {
    base: String,
    /// The same in Resend's shape.
    resend: String,
    key: String,
    directory: TempDir,
    _process: DevProcess,
}

impl Dev {
    fn start() -> Self {
        let mut process = DevProcess::start(&[]);
        let (base, resend) = (process.told("address"), process.told("Resend"));
        let key = process.told("API key");
        Self { base, resend, key, directory: tempfile::tempdir().unwrap(), _process: process }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The document as it is served, in a file.
    fn document(&self) -> PathBuf {
        let path = self.path("openapi.json");
        let url = format!("{}/openapi.json", self.base);
        done(Command::new("curl").args(["-sSf", "-o"]).arg(&path).arg(url));
        path
    }
}

/// Runs a program that must succeed.
fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{command:?}: {out}\n{err}");
    output
}

#[test]
fn the_service_is_what_its_document_says() {
    let dev = Dev::start();
    hold_against_its_document(&dev, &dev.base, &[]);
}

#[test]
fn the_api_in_resends_shape_is_what_its_document_says() {
    let dev = Dev::start();
    // A permissive batch refuses what does not conform in its place, and answers 200.
    hold_against_its_document(&dev, &dev.resend, &["--header", "x-batch-validation: strict"]);
}

fn hold_against_its_document(dev: &Dev, base: &str, more: &[&str]) {
    // Whether a domain is verified, or an address valid, no schema says: what conforms may be
    // refused all the same.
    let output = done(
        Command::new("schemathesis")
            .args(["run", &format!("{base}/openapi.json"), "--no-color"])
            .args(["--header", &format!("Authorization: Bearer {}", dev.key)])
            .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
            .args(["--max-examples", EXAMPLES, "--continue-on-failure"])
            .args(more)
            .current_dir(dev.directory.path()),
    );
    let output = String::from_utf8(output.stdout).unwrap();
    let cases = output.lines().find(|line| line.contains(" generated, ")).unwrap().trim();
    println!("schemathesis: {cases}");
    let count: usize = cases.split(' ').next().unwrap().parse().unwrap();
    assert!(count > 200, "{output}");
}

#[test]
fn a_generated_client_in_python_sends_and_reads() {
    let dev = Dev::start();
    let tools = beside("openapi-python-client");
    // The generator formats with what is installed beside it.
    let mut path = vec![tools.clone()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    done(
        Command::new("openapi-python-client")
            .args(["generate", "--meta", "none", "--fail-on-warning", "--path"])
            .arg(dev.document())
            .arg("--output-path")
            .arg(dev.path("mail_client"))
            .env("PATH", std::env::join_paths(path).unwrap()),
    );
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/generated.py");
    let output = done(
        Command::new(tools.join("python3"))
            .arg("-W")
            .arg("error::SyntaxWarning")
            .arg(program)
            .args([&dev.base, &dev.key])
            .env("PYTHONPATH", dev.directory.path()),
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "all as described\n");
}

#[test]
fn generated_types_in_typescript_fit_a_message() {
    let dev = Dev::start();
    let output = done(
        Command::new("openapi-typescript")
            .arg(dev.document())
            .arg("--output")
            .arg(dev.path("api.ts"))
            .current_dir(dev.directory.path()),
    );
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(!said.to_lowercase().contains("warn"), "{said}");
    let compile = |program: &str| {
        std::fs::write(dev.path("program.ts"), program).unwrap();
        let mut compiler = Command::new(beside("openapi-typescript").join("tsc"));
        compiler.args(["--noEmit", "--strict", "program.ts"]).current_dir(dev.directory.path());
        compiler.output().unwrap()
    };
    let program = include_str!("generated.ts");
    let output = compile(program);
    assert!(output.status.success(), "{output:?}");
    for (from, to) in [("subject:", "subjet:"), ("\"sent\"", "\"delivered\"")] {
        assert!(!compile(&program.replacen(from, to, 1)).status.success(), "{to} is taken");
    }
}
