//! Logging: to standard error, one line an event, never a body, a key or a credential.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::MetadataExt as _;

use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Level of the log if `RUST_LOG` does not set another one.
const DEFAULT: &str = "info";
/// Libraries that handle requests and credentials log nothing finer than this, whatever `RUST_LOG`
/// says: their traces may quote the content. The credential chain warns with whole answers; its
/// failures are logged in our own words.
const CAPPED: [(&str, LevelFilter); 10] = [
    ("aws_config", LevelFilter::OFF),
    ("aws_credential_types", LevelFilter::INFO),
    ("aws_runtime", LevelFilter::INFO),
    ("aws_sdk_sts", LevelFilter::INFO),
    ("aws_sigv4", LevelFilter::INFO),
    ("aws_smithy_runtime", LevelFilter::INFO),
    ("hyper", LevelFilter::INFO),
    ("hyper_util", LevelFilter::INFO),
    ("reqwest", LevelFilter::INFO),
    ("rustls", LevelFilter::INFO),
];

/// Choice whether each message's way is logged at the level of information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageLines {
    /// A line for each message as it moves, and for each attempt to deliver an event.
    Shown,
    /// Only if `RUST_LOG` asks for the targets `pillarbox::message` and `pillarbox::webhook`.
    Quiet,
}

/// Starts logging; a process does it once, before anything else.
pub(crate) fn start(messages: MessageLines) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.trim().is_empty());
    let wanted = wanted.unwrap_or_else(|| match messages {
        MessageLines::Shown => DEFAULT.to_owned(),
        MessageLines::Quiet => format!("{DEFAULT},pillarbox::message=warn,pillarbox::webhook=warn"),
    });
    let Wanted { targets, not_understood } = Wanted::read(&wanted);
    let finest = targets.iter().map(|(_, level)| level).chain(targets.default_level()).max();
    let filter = filter_fn(move |line| is_shown(&targets, line.target(), *line.level()))
        .with_max_level_hint(finest.unwrap_or(LevelFilter::OFF));
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(stderr)
        // Its own complaints would go to the same broken place, and panic there.
        .log_internal_errors(false)
        .with_ansi(stderr().is_terminal() && !no_color());
    // If a subscriber is set already, as in a test, that one stays.
    let _ = if is_journal() {
        subscriber
            .event_format(Journal(Format::default().without_time().with_target(false)))
            .finish()
            .with(filter)
            .try_init()
    } else {
        subscriber.with_target(false).finish().with(filter).try_init()
    };
    for part in not_understood {
        warn!(part, "RUST_LOG has a part that is neither TARGET=LEVEL nor a level; it is ignored");
    }
}

/// What `RUST_LOG` asks for: `LEVEL` or `TARGET=LEVEL`, separated by commas.
struct Wanted<'a> {
    targets: Targets,
    not_understood: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn read(text: &'a str) -> Self {
        let (mut targets, mut not_understood) = (Targets::new(), Vec::new());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<Targets>() {
                Ok(one) => {
                    if let Some(level) = one.default_level() {
                        targets = targets.with_default(level);
                    }
                    targets.extend(one);
                }
                Err(_) => not_understood.push(part),
            }
        }
        Self { targets, not_understood }
    }
}

fn is_shown(targets: &Targets, target: &str, level: Level) -> bool {
    let library = target.split("::").next();
    let cap = CAPPED.iter().find(|(name, _)| library == Some(*name));
    cap.is_none_or(|(_, cap)| level <= *cap) && targets.would_enable(target, &level)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_its_own_level_and_others_the_general_one() {
        let Wanted { targets, not_understood } =
            Wanted::read("info, pillarbox::message=warn,,pillarbox_store=debug");
        assert!(not_understood.is_empty());
        let finest = |target| {
            let all = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            all.into_iter().find(|level| is_shown(&targets, target, *level)).unwrap()
        };
        assert_eq!(finest("pillarbox_service"), Level::INFO);
        assert_eq!(finest("pillarbox::message"), Level::WARN);
        assert_eq!(finest("pillarbox_store::redb::writer"), Level::DEBUG);
    }

    #[test]
    fn libraries_that_see_content_never_log_it() {
        for wanted in ["trace", "hyper=trace,rustls=trace", "hyper::proto=trace,rustls::conn=trace"]
        {
            let Wanted { targets, .. } = Wanted::read(wanted);
            for target in ["hyper", "hyper::proto::h1", "rustls::conn"] {
                assert!(!is_shown(&targets, target, Level::DEBUG), "{wanted} {target}");
            }
            assert!(!is_shown(&targets, "aws_config::profile", Level::ERROR), "{wanted}");
        }
        let Wanted { targets, .. } = Wanted::read("warn");
        assert!(!is_shown(&targets, "hyper", Level::INFO));
        assert!(is_shown(&targets, "hyper", Level::WARN));
        // Its name only begins in the same way.
        assert!(is_shown(&Wanted::read("trace").targets, "hyperion", Level::TRACE));
    }

    #[test]
    fn a_part_that_is_not_understood_is_told_and_the_others_hold() {
        let Wanted { targets, not_understood } = Wanted::read("pillarbox_store=loud,debug");
        assert_eq!(not_understood, ["pillarbox_store=loud"]);
        assert!(is_shown(&targets, "pillarbox_store", Level::DEBUG));
    }
}
