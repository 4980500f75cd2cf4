//! Encoded words of header fields (RFC 2047).

/// Returns true if a text has an encoded word in it, or what others take for one: `=?`, and `?=`
/// after it.
pub fn looks_encoded(text: &str) -> bool {
    text.find("=?").is_some_and(|start| text[start + 2..].contains("?="))
}
