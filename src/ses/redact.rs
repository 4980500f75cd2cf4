//! Makes what a provider says fit for a record and a log: one bounded line without addresses.
//!
//! SES repeats addresses, display names and offending values in its messages. Domains stay, because
//! they tell which set-up is meant.

/// The longest message that is kept, in characters.
pub(super) const MAX_MESSAGE_CHARS: usize = 500;

/// What stands for something left out.
const LEFT_OUT: char = '…';

/// The text without local parts, display names before an address, values that a validation
/// repeats, and control characters; cut to `MAX_MESSAGE_CHARS`.
pub(super) fn redact(text: &str) -> String {
    let without_values = without_repeated_values(text);
    let mut shown = String::with_capacity(without_values.len().min(MAX_MESSAGE_CHARS * 4));
    let mut rest = without_values.as_str();
    while let Some(at) = rest.find('@') {
        let before = &rest[..at];
        shown.push_str(&before[..address_start(before)]);
        shown.push(LEFT_OUT);
        shown.push('@');
        rest = &rest[at + 1..];
    }
    shown.push_str(rest);
    shown
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_MESSAGE_CHARS)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Where the local part at the end of `before` starts, with the display name if it has one.
fn address_start(before: &str) -> usize {
    let local_start = if let Some(quoted) = before.strip_suffix('"') {
        quoted.rfind('"').unwrap_or(0)
    } else {
        before.rfind(ends_a_word).map_or(0, |index| index + char_len(before, index))
    };
    let Some(phrase) = before[..local_start].strip_suffix('<') else { return local_start };
    if let Some(quoted) = phrase.trim_end().strip_suffix('"') {
        return quoted.rfind('"').unwrap_or(0);
    }
    let start = phrase.rfind([',', ':', ';']).map_or(0, |index| index + 1);
    // The space after the separator stays.
    start + leading_spaces(&phrase[start..])
}

fn ends_a_word(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '<' | '>' | ',' | ';' | ':' | '(' | ')' | '[' | '\'' | '"' | '`')
}

fn char_len(text: &str, index: usize) -> usize {
    text[index..].chars().next().map_or(0, char::len_utf8)
}

fn leading_spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// AWS's validation errors read `Value '<what was sent>' at 'content.simple…' failed to satisfy`.
fn without_repeated_values(text: &str) -> String {
    const OPEN: &str = "Value '";
    const CLOSE: &str = "' at '";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find(OPEN) {
        let value = &rest[open + OPEN.len()..];
        shown.push_str(&rest[..open + OPEN.len()]);
        shown.push(LEFT_OUT);
        // Without its end, all that follows may be the value.
        rest = value.find(CLOSE).map_or("", |close| &value[close..]);
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn local_parts_and_display_names_go_and_domains_stay() {
        let text = "Email address is not verified. The following identities failed the check in \
                    region EU-WEST-1: Bob Lee <bob@example.com>, ann@example.org, \"a b\"@x.org";
        assert_eq!(
            redact(text),
            "Email address is not verified. The following identities failed the check in region \
             EU-WEST-1: …@example.com>, …@example.org, …@x.org"
        );
        assert_eq!(redact(r#"No: "Lee, Bob" <bob@example.com>"#), "No: …@example.com>");
        assert_eq!(redact("Invalid 'bob.lee+x@example.com'."), "Invalid '…@example.com'.");
    }

    #[test]
    fn values_that_a_validation_repeats_go() {
        let text = "1 validation error detected: Value 'my secret text' at 'content.simple.subject' \
                    failed to satisfy constraint";
        assert_eq!(
            redact(text),
            "1 validation error detected: Value '…' at 'content.simple.subject' failed to satisfy \
             constraint"
        );
        assert_eq!(redact("Value 'my secret"), "Value '…");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_short_line_without_the_local_part(
            before in "\\PC{0,40}", local in "[a-z]{12}", after in "(?s).{0,600}"
        ) {
            let shown = redact(&format!("{before} {local}@{after}"));
            prop_assert!(shown.chars().count() <= MAX_MESSAGE_CHARS);
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert!(!shown.contains(&local) || after.contains(&local) || before.contains(&local));
        }
    }
}
