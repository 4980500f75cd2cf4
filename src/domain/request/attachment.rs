//! Attachments: files that go with a message.
//!
//! The rules are SES's own, so that SES does not refuse after acceptance. A file's content is
//! checked where it is and passed on as it is written. Nothing here decodes or copies it.

use std::borrow::Cow;

use memchr::memchr;

use crate::limits::{
    MAX_ATTACHMENTS, MAX_CONTENT_ID_CHARS, MAX_CONTENT_TYPE_CHARS, MAX_FILENAME_CHARS,
};
use crate::request::{BodyText, FieldError, required};

/// Type of a file with an unknown extension (RFC 2046, section 4.5.1).
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Extensions of files that SES refuses (SES Developer Guide, "Amazon SES unsupported attachment
/// types": <https://docs.aws.amazon.com/ses/latest/dg/mime-types.html>).
const BLOCKED_EXTENSIONS: [&str; 90] = [
    "ade", "adp", "app", "asp", "bas", "bat", "cer", "chm", "cmd", "com", "cpl", "crt", "csh",
    "der", "exe", "fxp", "gadget", "hlp", "hta", "inf", "ins", "isp", "its", "js", "jse", "ksh",
    "lib", "lnk", "mad", "maf", "mag", "mam", "maq", "mar", "mas", "mat", "mau", "mav", "maw",
    "mda", "mdb", "mde", "mdt", "mdw", "mdz", "msc", "msh", "msh1", "msh2", "mshxml", "msh1xml",
    "msh2xml", "msi", "msp", "mst", "ops", "pcd", "pif", "plg", "prf", "prg", "reg", "scf", "scr",
    "sct", "shb", "shs", "sys", "ps1", "ps1xml", "ps2", "ps2xml", "psc1", "psc2", "tmp", "url",
    "vb", "vbe", "vbs", "vps", "vsmacros", "vss", "vst", "vsw", "vxd", "ws", "wsc", "wsf", "wsh",
    "xnk",
];

/// The members of an attachment as read, with no rule checked but their types.
#[derive(Debug, Clone, Default)]
pub struct AttachmentDraft<'a> {
    /// Name of the file with its extension.
    pub filename: Option<Cow<'a, str>>,
    /// The file's bytes, in base64.
    pub content: Option<BodyText<'a>>,
    /// Media type; `None` if it follows from the extension.
    pub content_type: Option<&'a str>,
    /// The name by which HTML refers to it.
    pub content_id: Option<&'a str>,
}

/// A file that goes with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment<'a> {
    /// Its name as recipients see it.
    pub filename: Cow<'a, str>,
    /// Its bytes, in base64 with padding (RFC 4648, section 4).
    pub content: BodyText<'a>,
    /// Media type, given or by the extension.
    pub content_type: &'a str,
    /// The name by which HTML shows it inline (RFC 2392).
    pub content_id: Option<&'a str>,
}

/// Checks all attachments of a message.
pub(super) fn checked_attachments(
    drafts: Vec<AttachmentDraft<'_>>,
) -> Result<Vec<Attachment<'_>>, FieldError> {
    if drafts.len() > MAX_ATTACHMENTS {
        let rule = format!("must have at most {MAX_ATTACHMENTS} entries");
        return Err(FieldError::new("attachments", rule));
    }
    let mut attachments: Vec<Attachment<'_>> = Vec::with_capacity(drafts.len());
    for (index, draft) in drafts.into_iter().enumerate() {
        let wrong = |error: FieldError| error.within(&format!("attachments[{index}]"));
        let attachment = checked(draft).map_err(wrong)?;
        let is_taken = |other: &Attachment<'_>| other.content_id == attachment.content_id;
        if attachment.content_id.is_some() && attachments.iter().any(is_taken) {
            return Err(wrong(FieldError::new("content_id", "is given twice")));
        }
        attachments.push(attachment);
    }
    Ok(attachments)
}

fn checked(draft: AttachmentDraft<'_>) -> Result<Attachment<'_>, FieldError> {
    let filename = required("filename", draft.filename)?;
    let extension = checked_filename(&filename)?;
    let content = required("content", draft.content)?;
    if content.is_empty() {
        return Err(FieldError::new("content", "must not be empty"));
    }
    if !is_base64(content) {
        let rule = "must be base64 with padding and without line breaks (RFC 4648, section 4)";
        return Err(FieldError::new("content", rule));
    }
    if draft.content_type.is_some_and(|text| !is_media_type(text)) {
        let rule = format!(
            "must be type/subtype, such as application/pdf, of at most {MAX_CONTENT_TYPE_CHARS} \
             characters"
        );
        return Err(FieldError::new("content_type", rule));
    }
    if draft.content_id.is_some_and(|text| !is_content_id(text)) {
        let rule = format!(
            "must be 1 to {MAX_CONTENT_ID_CHARS} printable ASCII characters without spaces, < or >"
        );
        return Err(FieldError::new("content_id", rule));
    }
    let by_extension = || {
        let known = mime_guess::from_ext(extension).first_raw();
        known.filter(|known| is_media_type(known)).unwrap_or(UNKNOWN_TYPE)
    };
    let content_type = draft.content_type.unwrap_or_else(by_extension);
    Ok(Attachment { filename, content, content_type, content_id: draft.content_id })
}

/// Checks a file's name, and returns its extension.
fn checked_filename(name: &str) -> Result<&str, FieldError> {
    let wrong = |rule: String| Err(FieldError::new("filename", rule));
    if name.chars().any(|c| c.is_control() || c == '/' || c == '\\') {
        return wrong("must not contain control characters, / or \\".to_owned());
    }
    if !(1..=MAX_FILENAME_CHARS).contains(&name.chars().count()) {
        return wrong(format!("must be 1 to {MAX_FILENAME_CHARS} characters"));
    }
    let extension = match name.rsplit_once('.') {
        // Some systems drop spaces at the end of a name.
        Some((stem, extension)) if !stem.is_empty() => extension.trim(),
        _ => "",
    };
    if extension.is_empty() {
        return wrong("must have an extension, as in invoice.pdf: SES requires one".to_owned());
    }
    if BLOCKED_EXTENSIONS.iter().any(|blocked| blocked.eq_ignore_ascii_case(extension)) {
        return wrong(format!("SES refuses files with the extension .{extension}"));
    }
    Ok(extension)
}

/// Returns true if a text is a media type without parameters (RFC 6838, section 4.2).
fn is_media_type(text: &str) -> bool {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    let parts = text.split_once('/');
    text.len() <= MAX_CONTENT_TYPE_CHARS
        && parts.is_some_and(|(kind, subtype)| is_name(kind) && is_name(subtype))
}

fn is_content_id(text: &str) -> bool {
    let is_taken = |b: u8| b.is_ascii_graphic() && b != b'<' && b != b'>';
    (1..=MAX_CONTENT_ID_CHARS).contains(&text.len()) && text.bytes().all(is_taken)
}

/// Returns true if a text is base64 with padding (RFC 4648, section 4), in JSON with or without
/// escapes: some encoders write `/` as `\/`. Bits that decode to nothing must be zero.
fn is_base64(content: BodyText<'_>) -> bool {
    let mut base64 = Base64::default();
    let is_taken = match content {
        BodyText::Plain(text) => base64.take(text.as_bytes()),
        BodyText::Json(written) => base64.take_escaped(written.as_bytes()),
    };
    is_taken.is_some() && base64.is_complete()
}

/// Base64 that is read piece by piece.
#[derive(Default)]
struct Base64 {
    chars: usize,
    padding: usize,
    last_digit: u8,
}

/// Value of a byte that is no digit of base64.
const NO_DIGIT: u8 = 0xff;

/// The value of each byte as a digit (RFC 4648, table 1).
const DIGITS: [u8; 256] = {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < alphabet.len() {
        #[expect(clippy::cast_possible_truncation, reason = "there are 64 digits")]
        let digit = value as u8;
        digits[alphabet[value] as usize] = digit;
        value += 1;
    }
    digits
};

impl Base64 {
    /// Reads the next piece; `None` if it cannot follow.
    fn take(&mut self, text: &[u8]) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        let end = text.iter().rposition(|&b| b != b'=').map_or(0, |last| last + 1);
        let (digits, padding) = text.split_at(end);
        // Without a stop at the first: there is usually none, and that is faster.
        let all = digits.iter().fold(0, |all, &b| all | DIGITS[usize::from(b)]);
        if all == NO_DIGIT || (self.padding > 0 && !digits.is_empty()) {
            return None;
        }
        self.chars += text.len();
        self.padding += padding.len();
        if let Some(&last) = digits.last() {
            self.last_digit = DIGITS[usize::from(last)];
        }
        Some(())
    }

    /// As [`Self::take`], of a single character.
    fn take_one(&mut self, b: u8) -> Option<()> {
        self.chars += 1;
        match DIGITS[usize::from(b)] {
            NO_DIGIT if b == b'=' => self.padding += 1,
            NO_DIGIT => return None,
            _ if self.padding > 0 => return None,
            digit => self.last_digit = digit,
        }
        Some(())
    }

    /// Reads the inside of a well-formed JSON string.
    fn take_escaped(&mut self, mut written: &[u8]) -> Option<()> {
        while let Some(at) = memchr(b'\\', written) {
            self.take(&written[..at])?;
            let escape = &written[at + 1..];
            written = match escape.first()? {
                b'/' => {
                    self.take_one(b'/')?;
                    &escape[1..]
                }
                b'u' => {
                    let code = std::str::from_utf8(escape.get(1..5)?).ok()?;
                    self.take_one(u8::from_str_radix(code, 16).ok()?)?;
                    &escape[5..]
                }
                _ => return None,
            };
        }
        self.take(written)
    }

    fn is_complete(&self) -> bool {
        let unused_bits = match self.padding {
            0 => 0,
            1 => 0b11,
            2 => 0b1111,
            _ => return false,
        };
        self.chars.is_multiple_of(4) && self.last_digit & unused_bits == 0
    }
}

#[cfg(test)]
mod tests;
