//! Reasons and times as other programs write them in their lists, in pillarbox's own words.
//!
//! What is not understood is left to the service, which refuses it by its rule.

use mail_parser::DateTime;

use pillarbox_domain::suppression::SuppressionReason;
use pillarbox_domain::time::Timestamp;

/// Meaning of a cell about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Suppressed(SuppressionReason),
    /// The address takes mail.
    NotSuppressed,
}

/// Beginnings of words and what they say, the first that fits: a complaint before the bounce that it
/// may be called.
const WORDS: [(&str, SuppressionReason); 19] = [
    ("complain", SuppressionReason::Complaint),
    ("spam", SuppressionReason::Complaint),
    ("abuse", SuppressionReason::Complaint),
    ("fbl", SuppressionReason::Complaint),
    ("feedback", SuppressionReason::Complaint),
    ("bounce", SuppressionReason::Bounce),
    ("hard", SuppressionReason::Bounce),
    ("soft", SuppressionReason::Bounce),
    ("invalid", SuppressionReason::Bounce),
    ("undeliver", SuppressionReason::Bounce),
    ("cleaned", SuppressionReason::Bounce),
    ("manual", SuppressionReason::Manual),
    ("unsub", SuppressionReason::Manual),
    ("optout", SuppressionReason::Manual),
    ("custom", SuppressionReason::Manual),
    ("admin", SuppressionReason::Manual),
    ("blocked", SuppressionReason::Manual),
    ("blocklist", SuppressionReason::Manual),
    ("usersuppressed", SuppressionReason::Manual),
];
/// Words for an address that takes mail.
const GOOD_WORDS: [&str; 4] = ["delivered", "opened", "clicked", "subscribed"];

/// Reads a reason: a word of ours or another program's, a reply of SMTP, or a sentence about one.
/// `None` if it is not understood.
pub(super) fn said(text: &str) -> Option<Said> {
    // What a server replied is a bounce, also if it speaks of spam.
    if is_reply(text) {
        return Some(Said::Suppressed(SuppressionReason::Bounce));
    }
    let lower = text.to_ascii_lowercase();
    let word: String = lower.chars().filter(char::is_ascii_alphanumeric).collect();
    if GOOD_WORDS.contains(&word.as_str()) {
        return Some(Said::NotSuppressed);
    }
    let begins = |word: &str| {
        WORDS.iter().find(|(start, _)| word.starts_with(start)).map(|(_, reason)| *reason)
    };
    // `HardBounce` and `hard_bounce` as one word, and a sentence word by word. Another sentence is the
    // operator's own.
    let of_words = || lower.split(|c: char| !c.is_ascii_alphanumeric()).find_map(begins);
    let of_sentence = || text.contains(' ').then_some(SuppressionReason::Manual);
    begins(&word).or_else(of_words).or_else(of_sentence).map(Said::Suppressed)
}

/// Returns true if a text has a reply of SMTP (`550 …`) or its enhanced code (`5.1.1`, RFC 3463).
fn is_reply(text: &str) -> bool {
    let code = |word: &str| {
        let digits = |part: &str, most| {
            (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_class = word.starts_with(['4', '5']);
        let parts: Vec<_> = word.split('.').collect();
        match &parts[..] {
            [reply] => is_class && reply.len() == 3 && digits(reply, 3),
            [class, subject, detail] => {
                is_class && digits(class, 1) && digits(subject, 3) && digits(detail, 3)
            }
            _ => false,
        }
    };
    let enhanced = |word: &str| word.contains('.') && code(word);
    let words = text.split(|c: char| c.is_whitespace() || "-;:()[]<>#".contains(c));
    let mut words = words.filter(|word| !word.is_empty());
    // "smtp; 550 …" (RFC 3464, section 2.3.6).
    let first = words.next().filter(|word| !word.eq_ignore_ascii_case("smtp"));
    first.or_else(|| words.next()).is_some_and(code)
        || text.split_whitespace().map(|word| word.trim_matches(['(', ')', '#'])).any(enhanced)
}

/// Reads a time: with an offset or in UTC, with a T or a space, a date alone, as in a mail header, or
/// as seconds or milliseconds since 1970. `None` if it is not understood.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    Timestamp::parse_rfc3339_with_offset(text)
        .ok()
        .or_else(|| since_epoch(text))
        .or_else(|| date_and_time(text))
        .or_else(|| of_mail(text))
}

/// Seconds, perhaps with a fraction, or milliseconds. Smaller numbers are something else, such as
/// the days of a spreadsheet.
fn since_epoch(text: &str) -> Option<Timestamp> {
    const SECONDS: std::ops::Range<u64> = 100_000_000..100_000_000_000;
    const MILLIS: std::ops::Range<u64> = 100_000_000_000..100_000_000_000_000;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let millis: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    if SECONDS.contains(&number) {
        Some(Timestamp::from_unix_millis(number * 1_000 + millis))
    } else {
        MILLIS.contains(&number).then(|| Timestamp::from_unix_millis(number))
    }
}

/// `2026-11-21 09:30:00`, with or without seconds, fraction, offset or `UTC`; or the date alone.
fn date_and_time(text: &str) -> Option<Timestamp> {
    const DATE: usize = "2026-11-21".len();
    const MINUTES: usize = "09:30".len();
    let (date, rest) = text.split_at_checked(DATE)?;
    let time = rest.trim_start_matches(['T', ' ']).trim_end_matches(['Z', 'z']);
    let time = time.trim_end_matches("UTC").trim_end_matches("GMT").trim_end();
    let (time, offset) = time.find(['+', '-']).map_or((time, "Z"), |at| time.split_at(at));
    let time = match time.trim_end() {
        "" if offset == "Z" => "00:00:00".to_owned(),
        time if time.len() == MINUTES => format!("{time}:00"),
        time => time.to_owned(),
    };
    Timestamp::parse_rfc3339_with_offset(&format!("{date}T{time}{offset}")).ok()
}

/// `Mon, 06 May 2024 18:11:58 UTC` (RFC 5322, section 3.3).
fn of_mail(text: &str) -> Option<Timestamp> {
    let has_month = text.split([' ', '-']).any(|word| {
        word.len() == 3 && !word.ends_with(',') && word.bytes().all(|b| b.is_ascii_alphabetic())
    });
    let date = has_month.then(|| DateTime::parse_rfc822(text))?.filter(DateTime::is_valid)?;
    let seconds = u64::try_from(date.to_timestamp()).ok()?;
    Some(Timestamp::from_unix_millis(seconds * 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_other_programs_are_understood() {
        use SuppressionReason::{Bounce, Complaint, Manual};
        for (text, reason) in [
            ("BOUNCE", Bounce),
            ("HardBounce", Bounce),
            ("hard-bounce", Bounce),
            ("HARD_BOUNCE", Bounce),
            ("soft-bounce", Bounce),
            ("Bounce Rule", Bounce),
            ("bounced", Bounce),
            ("invalid_email", Bounce),
            ("550 5.1.1 no such user", Bounce),
            ("550", Bounce),
            ("5.1.1", Bounce),
            ("4.2.2", Bounce),
            ("550-5.7.1 Our system has detected that this is spam", Bounce),
            ("smtp; 550 5.4.1 Recipient address rejected", Bounce),
            ("host mx.x.org said: 5.1.1 unknown", Bounce),
            ("SpamComplaint", Complaint),
            ("Spam Complaint", Complaint),
            ("spam", Complaint),
            ("complained", Complaint),
            ("abuse", Complaint),
            ("The recipient made a complaint", Complaint),
            ("ManualSuppression", Manual),
            ("Manually Added", Manual),
            ("List Unsubscribe", Manual),
            ("unsubscribed", Manual),
            ("asked us by telephone", Manual),
        ] {
            assert_eq!(said(text), Some(Said::Suppressed(reason)), "{text}");
        }
        assert_eq!(said("delivered"), Some(Said::NotSuppressed));
        assert_eq!(said("subscribed"), Some(Said::NotSuppressed));
        assert_eq!(said("could not be delivered"), Some(Said::Suppressed(Manual)));
        for text in ["spite", "", "transactional", "2020", "9.1.1", "12345"] {
            assert_eq!(said(text), None, "{text}");
        }
    }

    #[test]
    fn times_of_other_programs_are_understood() {
        for (text, expected) in [
            ("2020-04-10T21:03:05Z", "2020-04-10T21:03:05.000Z"),
            ("2020-04-10T21:03:05.114000+02:00", "2020-04-10T19:03:05.114Z"),
            ("1586552585", "2020-04-10T21:03:05.000Z"),
            ("1586552585.077", "2020-04-10T21:03:05.077Z"),
            ("1586552585077", "2020-04-10T21:03:05.077Z"),
            ("2020-04-10 21:03:05", "2020-04-10T21:03:05.000Z"),
            ("2020-04-10 21:03", "2020-04-10T21:03:00.000Z"),
            ("2020-04-10 21:03:05.95665", "2020-04-10T21:03:05.956Z"),
            ("2020-04-10 21:03:05 UTC", "2020-04-10T21:03:05.000Z"),
            ("2020-04-10 21:03:05 +0200", "2020-04-10T19:03:05.000Z"),
            ("2020-04-10", "2020-04-10T00:00:00.000Z"),
            ("Fri, 10 Apr 2020 21:03:05 UTC", "2020-04-10T21:03:05.000Z"),
            ("Fri, 10 Apr 2020 21:03:05 GMT", "2020-04-10T21:03:05.000Z"),
            ("Fri, 10 Apr 2020 21:03:05 +0200", "2020-04-10T19:03:05.000Z"),
        ] {
            assert_eq!(
                time(text).map(|time| time.to_string()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        let others = ["yesterday", "45383.5", "04/10/2020", "", "2020-13-10", "1e12", "20200410"];
        for text in others {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
