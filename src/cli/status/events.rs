//! The lines of `status` about the provider's events.

use std::time::Duration;

use crate::admin::wire::{Events, TakenIn};

/// The lines of a running service, or of its file alone.
pub(super) fn lines(events: &Events, uptime_seconds: Option<u64>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match &events.taken_in {
        Some(taken_in) => lines.extend(taken_in_lines(taken_in)),
        None if uptime_seconds.is_some() => lines.push((
            "events",
            "nothing brings them, so what becomes of messages after SES took them stays unknown, \
             and bounces suppress nobody. Set ses.events.queue_url"
                .to_owned(),
        )),
        None => {}
    }
    let Some(stored) = &events.stored else {
        lines.push(("waiting events", "they cannot be read from the store".to_owned()));
        return lines;
    };
    if stored.unmatched_waiting > 0 {
        lines.push((
            "waiting events",
            format!(
                "{}, about messages that have no record; each is kept for a day. If they stay \
                 many, something else sends through the same configuration set",
                stored.unmatched_waiting
            ),
        ));
    }
    if stored.dead_letters > 0 {
        lines.push((
            "dead letters",
            format!(
                "{} documents of the provider could not be read; see them with: pillarbox \
                 dead-letter list",
                stored.dead_letters
            ),
        ));
    }
    lines
}

fn taken_in_lines(taken_in: &TakenIn) -> Vec<(&'static str, String)> {
    let counts = [
        ("delivery", taken_in.delivery),
        ("bounce", taken_in.bounce),
        ("complaint", taken_in.complaint),
        ("reject", taken_in.reject),
        ("delivery_delay", taken_in.delivery_delay),
        ("send", taken_in.send),
        ("of other types, ignored", taken_in.ignored),
        ("unreadable", taken_in.unreadable),
    ];
    let counts = counts.map(|(name, count)| format!("{count} {name}")).join(", ");
    let last = match taken_in.seconds_since_last {
        Some(seconds) => {
            format!("the last {} ago", humantime::format_duration(Duration::from_secs(seconds)))
        }
        None => "none yet".to_owned(),
    };
    let mut lines = vec![("events", format!("since the start: {counts}; {last}"))];
    if taken_in.unmatched + taken_in.foreign > 0 {
        lines.push((
            "unmatched events",
            format!(
                "{} of these found no message when they came, {} named another organisation than \
                 their message's and were dropped",
                taken_in.unmatched, taken_in.foreign
            ),
        ));
    }
    if let Some(trouble) = &taken_in.trouble {
        lines.push((
            "events trouble",
            format!(
                "none can be had now ({trouble}). They wait in the queue meanwhile, up to its \
                 retention. Check the network, ses.events.queue_url and that the credentials may \
                 sqs:ReceiveMessage and sqs:DeleteMessage; it then goes on by itself"
            ),
        ));
    }
    lines
}
