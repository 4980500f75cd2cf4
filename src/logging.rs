//! Logging: to standard error, one line an event, never a body, a key or a credential.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// What is logged where `RUST_LOG` does not say otherwise.
const DEFAULT: &str = "info";
/// Libraries that handle requests and credentials say nothing finer than this, whatever
/// `RUST_LOG` says: their traces may quote what they carry. The credential chain warns with whole
/// answers; what went wrong there is logged by our own words.
const CAPPED: [&str; 10] = [
    "aws_config=off",
    "aws_credential_types=info",
    "aws_runtime=info",
    "aws_sdk_sts=info",
    "aws_sigv4=info",
    "aws_smithy_runtime=info",
    "hyper=info",
    "hyper_util=info",
    "reqwest=info",
    "rustls=info",
];

/// Whether each message's way is logged at the level of information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageLines {
    /// A line for each message as it moves.
    Shown,
    /// Only where `RUST_LOG` asks for the target `pillarbox::message`.
    Quiet,
}

/// Starts logging; a process does it once, before anything else.
pub fn start(messages: MessageLines) {
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| match messages {
        MessageLines::Shown => DEFAULT.to_owned(),
        MessageLines::Quiet => format!("{DEFAULT},pillarbox::message=warn"),
    });
    let mut filter = EnvFilter::new(wanted);
    for directive in CAPPED {
        filter = filter.add_directive(directive.parse().expect("a well-formed directive"));
    }
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_target(false)
        // Its own complaints would go to the same broken place, and panic there.
        .log_internal_errors(false)
        .with_ansi(stderr().is_terminal() && !no_color());
    // Where a subscriber is set already, as in a test, that one stays.
    let _ = subscriber.try_init();
}

/// Whether whoever looks wants no colours (<https://no-color.org>).
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
