//! Examples of every command, for its help and its manual page.

/// A command line as it is typed, and its effect as a short sentence without a full stop.
type Example = (&'static str, &'static str);

/// All examples. A command's own are those whose line begins with its name.
const ALL: [Example; 66] = [
    ("pillarbox dev", "Try the whole service; nothing leaves the machine"),
    ("pillarbox dev --data-dir trial", "Keep the data for the next start"),
    ("pillarbox dev --listen localhost:8080", "Listen on another port"),
    ("pillarbox serve --config /etc/pillarbox/pillarbox.toml", "Run the service"),
    (
        "pillarbox serve --check --config /etc/pillarbox/pillarbox.toml",
        "Check whether the service would start",
    ),
    ("pillarbox restart", "Continue with the program that is installed now"),
    ("pillarbox simulator --listen 127.0.0.1:9100", "Run a stand-in for SES on port 9100"),
    (
        "pillarbox simulator --listen 127.0.0.1:0 --latency 50ms --send-rate 14 --verified example.com",
        "Take a free port, with the rate of a new SES account outside the sandbox",
    ),
    ("pillarbox org add shop", "Add the organisation shop"),
    ("pillarbox org list --json", "List the organisations as JSON"),
    ("pillarbox org add staging --test", "Add an organisation whose mail never goes to SES"),
    ("pillarbox org limit shop --per-day 20000", "Limit the recipients per day"),
    (
        "pillarbox org usage --month 2026-11 --csv",
        "Print each organisation's accepted recipients, for billing",
    ),
    ("pillarbox org pause shop --refuse", "Stop its mail and refuse its requests"),
    ("pillarbox org resume shop", "Continue to send its mail"),
    ("pillarbox org remove shop", "Revoke its keys and cancel its queued messages"),
    ("pillarbox key add --org shop --name web", "Create an API key, which is printed only once"),
    ("pillarbox key list --org shop", "List the keys of an organisation"),
    (
        "pillarbox key add --org shop --scope send --domain example.com",
        "Print a key that only sends, and only from this domain",
    ),
    ("pillarbox key rotate 3", "Replace a key; the old one works for one more day"),
    ("pillarbox key revoke 3", "Revoke the key with the id 3 at once"),
    ("pillarbox domain add --org shop example.com", "Print the DNS records to publish"),
    ("pillarbox domain list", "List domains and whether they are verified"),
    ("pillarbox domain check example.com", "Ask SES now whether the domain is verified"),
    ("pillarbox domain remove --org shop example.com", "Remove the domain"),
    ("pillarbox suppression add --org shop ada@example.net", "Suppress one address"),
    (
        "pillarbox suppression remove --all ada@example.net",
        "Remove the suppression for all organisations; those of single organisations stay",
    ),
    ("pillarbox suppression list", "List suppressed addresses"),
    ("pillarbox suppression import --org shop list.csv", "Import another service's list"),
    ("pillarbox suppression export list.csv", "Write all suppressions to a file"),
    ("pillarbox message list --status failed", "List failed messages, newest first"),
    (
        "pillarbox message show 01a1fd35-b382-764f-9765-f59ce8c38e64",
        "Show a message and its timeline",
    ),
    ("pillarbox message cancel --org shop", "Cancel the queued messages of an organisation"),
    (
        "pillarbox webhook add --org shop https://shop.example/events --types email.bounce",
        "Send bounces to an endpoint; its secret is printed only once",
    ),
    ("pillarbox webhook list", "List endpoints with the state of their deliveries"),
    ("pillarbox webhook show 1", "Show endpoint 1 and its last attempts"),
    ("pillarbox webhook remove 1", "Remove endpoint 1"),
    ("pillarbox webhook pause 1", "Stop its deliveries; its events wait"),
    ("pillarbox webhook resume 1", "Deliver its waiting events"),
    ("pillarbox webhook rotate 1", "Print a new secret; the old one signs for 24 more hours"),
    ("pillarbox webhook test 1", "Send a test event and print the answer"),
    ("pillarbox webhook deliveries 1 --failed", "List deliveries that failed"),
    ("pillarbox webhook replay 1 --since 2h", "Deliver the events of the last two hours again"),
    ("pillarbox dead-letter list", "List documents that were set aside"),
    ("pillarbox dead-letter show 3f9a0c71d2be", "Show the document whose id begins with this"),
    ("pillarbox dead-letter clear --all", "Delete all dead letters"),
    ("pillarbox bodies", "Show how many bodies there are, and what they survive"),
    ("pillarbox bodies drop", "Discard bodies of an earlier process that cannot be used"),
    ("pillarbox node list", "List the nodes on the database"),
    ("pillarbox node drain mail-b", "Let a node send what it holds, before you stop it"),
    ("pillarbox node drain --undo mail-b", "Make the node accept messages again"),
    ("pillarbox node forget mail-b", "Fail the messages of a node that is gone"),
    (
        "pillarbox cluster import --config /etc/pillarbox/pillarbox.toml pillarbox.backup",
        "Import a backup into the database of several nodes",
    ),
    ("pillarbox aws setup --dry-run", "Print what would be created, and the permissions needed"),
    (
        "pillarbox aws setup --config /etc/pillarbox/pillarbox.toml",
        "Create the AWS resources, and write the keys into the file",
    ),
    ("pillarbox status", "Show how the service is doing"),
    ("pillarbox status --watch 5s", "Show it every five seconds"),
    ("pillarbox status --page", "Print the address of the operator's page"),
    ("pillarbox doctor --config /etc/pillarbox/pillarbox.toml", "Check the set-up"),
    (
        "pillarbox doctor --config /etc/pillarbox/pillarbox.toml --send",
        "Send a message to SES's mailbox simulator too",
    ),
    ("pillarbox clock confirm", "Confirm that the clock is right"),
    ("pillarbox backup /var/backups/pillarbox.backup", "Copy all stored data to a file"),
    (
        "pillarbox restore --config /etc/pillarbox/pillarbox.toml --replace pillarbox.backup",
        "Replace the data file with a backup",
    ),
    ("pillarbox compact --config /etc/pillarbox/pillarbox.toml", "Make the data file small"),
    (
        "pillarbox completions bash > ~/.local/share/bash-completion/completions/pillarbox",
        "Complete commands in bash",
    ),
    ("pillarbox man --dir man", "Write the manual pages into the directory man"),
];
/// The most examples of a command that has commands of its own.
const MAX_OF_GROUP: usize = 4;

/// The examples of a command, by its whole name such as `pillarbox key add`.
pub(super) fn of(command: &clap::Command, name: &str) -> Vec<&'static Example> {
    let is_own = |line: &str| line == name || line.starts_with(&format!("{name} "));
    let own = ALL.iter().filter(|(line, _)| is_own(line));
    if command.has_subcommands() { own.take(MAX_OF_GROUP).collect() } else { own.collect() }
}

/// The command with its examples, and those of all commands below it, at the end of their help.
pub(super) fn in_help(command: clap::Command, name: &str) -> clap::Command {
    let examples = of(&command, name);
    let exit_codes = command.get_after_help().map(|text| format!("\n{text}")).unwrap_or_default();
    let names: Vec<_> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, below| {
        let whole = format!("{name} {below}");
        command.mut_subcommand(below, |below| in_help(below, &whole))
    });
    if examples.is_empty() {
        return command;
    }
    let lines = examples.iter().map(|(line, does)| format!("  # {does}\n  {line}\n"));
    command.after_help(format!("Examples:\n{}{exit_codes}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(clap::Command, String)>) {
        if !command.has_subcommands() {
            found.push((command.clone(), name.to_owned()));
        }
        for below in command.get_subcommands() {
            leaves(below, &format!("{name} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_is_a_command() {
        let root = crate::command_line();
        let mut found = Vec::new();
        leaves(&root, "pillarbox", &mut found);
        for (command, name) in found {
            assert!(!of(&command, &name).is_empty(), "{name} has no example");
        }
        for (line, _) in &ALL {
            let line = line.split(" > ").next().unwrap();
            let parsed = root.clone().try_get_matches_from(line.split(' '));
            parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn help_ends_with_the_examples() {
        let mut root = in_help(crate::command_line(), "pillarbox");
        let help = root.find_subcommand_mut("dev").unwrap().render_help().to_string();
        assert!(help.contains("Examples:\n  # Try the whole service"), "{help}");
        let help = root.render_help().to_string();
        assert!(help.contains("Examples:\n") && help.contains("Exit codes:"), "{help}");
    }
}
