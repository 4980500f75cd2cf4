//! Manual pages: one of each command, and one of the configuration file.
//!
//! Made from the command line's own definition and the reference of the keys, so that none of them
//! can be out of date.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use clap_mangen::Man;

use crate::examples;
use pillarbox_config::{DefaultOrExample, reference};

/// Exit codes, with what each means.
const EXIT_CODES: [(&str, &str); 7] = [
    ("0", "The command succeeded."),
    (
        "1",
        "The command failed. Standard error says why. For pillarbox status also: no service is \
         running, or a critical condition holds.",
    ),
    ("2", "The command line is wrong."),
    ("70", "The service ended because of a fault in pillarbox (pillarbox serve)."),
    (
        "71",
        "The service stopped normally, but messages failed with body_lost_on_restart (pillarbox \
         serve).",
    ),
    (
        "75",
        "pillarbox serve: the other nodes treated this one as dead, or it received bodies of \
         pending messages and could not start; start the service again. Other commands: the version \
         of the running service does not know the command; restart the service.",
    ),
    ("78", "The configuration is wrong. Standard error names every key at fault."),
];

/// Files of an installed service, with what each is.
const FILES: [(&str, &str); 5] = [
    (
        "/etc/pillarbox/pillarbox.toml",
        "Configuration of the packaged service, see pillarbox.toml(5).",
    ),
    (
        "/var/lib/pillarbox/pillarbox.redb",
        "Data file. While the service is running, no command writes to it.",
    ),
    ("/var/lib/pillarbox/pillarbox.journal", "Journal of the data file, in the same directory."),
    ("/run/pillarbox/admin.sock", "Socket of the administration commands."),
    ("/usr/share/doc/pillarbox/docs", "Documentation."),
];

/// Writes all pages into a directory.
pub(super) fn write(command: clap::Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // Without `help` and its subcommands, each of which would have a page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, "pillarbox", directory)?;
    fs::write(directory.join("pillarbox.toml.5"), configuration())
}

fn write_pages(command: &clap::Command, name: &str, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, &format!("{name} {}", below.get_name()), directory)?;
    }
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.write_all(own_sections(command, name).as_bytes())?;
    fs::write(directory.join(man.get_filename()), page)
}

/// The sections that the command line's definition does not have.
fn own_sections(command: &clap::Command, name: &str) -> String {
    let mut text = String::new();
    let examples = examples::of(command, name);
    if !examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
        for (line, does) in examples {
            paragraph(&mut text, &format!("{does}:"));
            verbatim(&mut text, line);
        }
    }
    definitions(&mut text, "EXIT STATUS", &EXIT_CODES);
    definitions(&mut text, "FILES", &FILES);
    text.push_str(".SH \"SEE ALSO\"\n");
    let page = name.replace(' ', "-");
    let above = page.rsplit_once('-').map(|(above, _)| format!("{above}(1), "));
    paragraph(&mut text, &format!("{}pillarbox.toml(5)", above.unwrap_or_default()));
    text
}

/// The page of the configuration file.
fn configuration() -> String {
    let mut text = format!(
        ".TH pillarbox.toml 5 \"\" \"pillarbox {}\"\n.SH NAME\npillarbox.toml \\- configuration of \
         pillarbox\n.SH DESCRIPTION\n",
        env!("CARGO_PKG_VERSION")
    );
    for about in [
        "The configuration is a TOML file. An empty file is enough to start.",
        "Each key also has an environment variable, which overrides the file: PILLARBOX_ and the \
         key in upper case, with two underscores between levels.",
        "Write durations as \"90s\", \"1m 30s\" or \"12h\". Sizes are in bytes.",
        "pillarbox reports all unknown keys and variables and all bad values at once, each with \
         what is allowed, and exits with 78.",
    ] {
        paragraph(&mut text, about);
    }
    text.push_str(".SH KEYS\n");
    for key in reference() {
        let _ = writeln!(text, ".TP\n\\fB{}\\fR", escaped(&key.key));
        let _ = writeln!(text, "{}", escaped(&key.meaning));
        let value = match &key.value {
            DefaultOrExample::Default(value) => format!("Default: {value}"),
            DefaultOrExample::Example(value) => format!("No default; for example {value}"),
        };
        for line in
            [value, format!("Allowed: {}", key.allowed), format!("Variable: {}", key.variable)]
        {
            let _ = writeln!(text, ".br\n{}", escaped(&line));
        }
    }
    text.push_str(".SH EXAMPLES\n");
    paragraph(&mut text, "A service that sends through SES in Ireland:");
    verbatim(
        &mut text,
        "listen = \"127.0.0.1:8025\"\ndata_dir = \"/var/lib/pillarbox\"\n\n[ses]\nregion = \
         \"eu-west-1\"\nconfiguration_set = \"pillarbox\"",
    );
    definitions(&mut text, "FILES", &FILES[..1]);
    text.push_str(".SH \"SEE ALSO\"\n");
    paragraph(&mut text, "pillarbox(1), pillarbox-serve(1), pillarbox-doctor(1)");
    text
}

fn definitions(text: &mut String, heading: &str, entries: &[(&str, &str)]) {
    let _ = writeln!(text, ".SH \"{heading}\"");
    for (name, meaning) in entries {
        let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(meaning));
    }
}

fn paragraph(text: &mut String, words: &str) {
    let _ = writeln!(text, ".PP\n{}", escaped(words));
}

fn verbatim(text: &mut String, lines: &str) {
    let _ = writeln!(text, ".RS 4\n.nf\n{}\n.fi\n.RE", escaped(lines));
}

/// Text in which roff sees no command (`groff(7)`, "Escape Sequences" and "Control Lines").
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| {
        let is_control = line.starts_with(['.', '\'']);
        if is_control { format!("\\&{line}") } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_examples_exit_status_and_files() {
        let directory = tempfile::tempdir().unwrap();
        write(crate::command_line(), directory.path()).unwrap();
        let mut pages = 0;
        for entry in fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            let page = fs::read_to_string(&path).unwrap();
            let of_command = path.extension().unwrap() == "1";
            let headings: &[&str] = if of_command {
                &[".SH EXAMPLES", ".SH \"EXIT STATUS\"", ".SH \"FILES\""]
            } else {
                &[".SH EXAMPLES", ".SH \"FILES\"", "\\fBsending.max_in_flight\\fR"]
            };
            for heading in headings {
                assert!(page.contains(heading), "{}: {heading}", path.display());
            }
            pages += 1;
        }
        assert!(pages > 40, "{pages}");
    }

    #[test]
    fn text_is_never_a_command_of_roff() {
        assert_eq!(escaped(".TP\n'x\na\\b --c"), "\\&.TP\n\\&'x\na\\eb \\-\\-c");
    }
}
