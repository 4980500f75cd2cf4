//! Removes elements from HTML that a policy does not cover: elements by which a browser contacts
//! others without loading anything (a `preconnect`, a resolved name), and nested documents in which
//! there may be such elements in disguise.

/// Their names. `link` connects, `meta` allows names to be resolved and goes elsewhere by
/// refreshing, and the `srcdoc` of an `iframe` may have either, as character references.
const TAKEN_OUT: [&str; 3] = ["link", "meta", "iframe"];
/// Replacement: an element that no browser knows any more, and that is allowed in the same places,
/// without an end tag (HTML Living Standard, section 13.2.6.4.4, "in head").
const INERT: &str = "basefont";

/// The same document without such elements. It is read as a tokenizer reads tags (HTML Living
/// Standard, sections 13.2.5.6 and 13.2.5.8): `<`, the name in any case, and the character that
/// ends a name. If that is no tag, as in a comment, a text is changed that is not shown here.
pub(super) fn sanitize(html: &str) -> String {
    let mut inert = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at + 1);
        inert.push_str(before);
        rest = match TAKEN_OUT.iter().find_map(|name| after(tag, name)) {
            Some(after) => {
                inert.push_str(INERT);
                after
            }
            None => tag,
        };
    }
    inert.push_str(rest);
    inert
}

/// Rest after the tag's name, if it is this one.
fn after<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (start, rest) = tag.split_at_checked(name.len())?;
    let ends = rest.starts_with(['\t', '\n', '\u{c}', '\r', ' ', '/', '>']);
    (ends && start.eq_ignore_ascii_case(name)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_turn_to_others_are_taken_out_however_they_are_written() {
        for (html, expected) in [
            ("<link rel=preconnect href=//a>", "<basefont rel=preconnect href=//a>"),
            (
                "<LiNk\nrel=x><link/rel=x><link\u{c}x>",
                "<basefont\nrel=x><basefont/rel=x><basefont\u{c}x>",
            ),
            ("a<<meta http-equiv=refresh>", "a<<basefont http-equiv=refresh>"),
            (
                "<iframe srcdoc='&lt;link&gt;'>é</iframe>",
                "<basefont srcdoc='&lt;link&gt;'>é</iframe>",
            ),
            ("<!--><link >", "<!--><basefont >"),
        ] {
            assert_eq!(sanitize(html), expected);
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for html in [
            "",
            "<",
            "<p>Links: <b>link</b> &lt;link&gt;",
            "<link",
            "<links>",
            "<link-é>",
            "<mét >",
        ] {
            assert_eq!(sanitize(html), html);
        }
    }
}
