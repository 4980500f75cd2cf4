//! Logging: to standard error, one line an event, never a body, a key or a credential.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::MetadataExt as _;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Level of the log if `RUST_LOG` does not set another one.
const DEFAULT: &str = "info";
/// Libraries that handle requests and credentials log nothing finer than this, whatever `RUST_LOG`
/// says: their traces may quote the content. The credential chain warns with whole answers; its
/// failures are logged in our own words.
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

/// Choice whether each message's way is logged at the level of information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageLines {
    /// A line for each message as it moves, and for each attempt to deliver an event.
    Shown,
    /// Only if `RUST_LOG` asks for the targets `pillarbox::message` and `pillarbox::webhook`.
    Quiet,
}

/// Starts logging; a process does it once, before anything else.
pub fn start(messages: MessageLines) {
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| match messages {
        MessageLines::Shown => DEFAULT.to_owned(),
        MessageLines::Quiet => format!("{DEFAULT},pillarbox::message=warn,pillarbox::webhook=warn"),
    });
    let mut filter = EnvFilter::new(wanted);
    for directive in CAPPED {
        filter = filter.add_directive(directive.parse().expect("a well-formed directive"));
    }
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        // Its own complaints would go to the same broken place, and panic there.
        .log_internal_errors(false)
        .with_ansi(stderr().is_terminal() && !no_color());
    // If a subscriber is set already, as in a test, that one stays.
    let _ = if is_journal() {
        subscriber
            .event_format(Journal(Format::default().without_time().with_target(false)))
            .try_init()
    } else {
        subscriber.with_target(false).try_init()
    };
}

/// Lines for systemd's journal, which keeps the time itself and takes the priority from the start
/// of a line (`sd-daemon(3)`), so that `journalctl -p err` finds what it should.
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

/// True if standard error is the journal: systemd says which device and file it is
/// (`systemd.exec(5)`, `$JOURNAL_STREAM`), for it may have been turned elsewhere since.
fn is_journal() -> bool {
    let Ok(said) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stream) = std::fs::metadata("/proc/self/fd/2") else { return false };
    said == format!("{}:{}", stream.dev(), stream.ino())
}

/// True if the user wants no colours (<https://no-color.org>).
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
