//! Puts a message's own pictures into its HTML, which may load nothing: a reference such as
//! `cid:logo` (RFC 2392) becomes the picture itself (RFC 2397).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use crate::captured_mail::CaughtFile;

const SCHEME: &str = "cid:";
/// Image formats that can hold nothing else. A format that may have scripts in it, as SVG, stays a
/// file.
const PICTURES: [&str; 4] = ["image/gif", "image/jpeg", "image/png", "image/webp"];
/// Most bytes that pictures add to a document: a short one may refer to a large one often.
const MAX_ADDED_BYTES: usize = 32 << 20;

/// The same document with the pictures to which it refers.
pub(super) fn show_images(html: &str, files: &[CaughtFile]) -> String {
    let mut shown = String::with_capacity(html.len());
    let mut rest = html;
    let mut left = MAX_ADDED_BYTES;
    while let Some(at) = rest.find(SCHEME) {
        let (before, reference) = (&rest[..at], &rest[at + SCHEME.len()..]);
        shown.push_str(before);
        let ends = |c: char| c.is_ascii_whitespace() || "\"'<>)".contains(c);
        let (id, after) = reference.split_at(reference.find(ends).unwrap_or(reference.len()));
        match picture(id, files) {
            Some((media_type, content)) if content.len() * 4 / 3 <= left => {
                left -= content.len() * 4 / 3;
                shown.extend(["data:", media_type, ";base64,"]);
                STANDARD.encode_string(content, &mut shown);
            }
            _ => shown.extend([SCHEME, id]),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// The picture with a content id, as it is written in a reference: its type and bytes.
fn picture<'f>(id: &str, files: &'f [CaughtFile]) -> Option<(&'f str, &'f [u8])> {
    let id = percent_decode_str(id).decode_utf8().ok()?;
    let file = files.iter().find(|file| file.content_id.as_deref() == Some(&*id))?;
    let media_type = file.media_type.as_deref()?;
    PICTURES.contains(&media_type).then_some((media_type, &*file.content))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn file(id: &str, media_type: &str, content: Vec<u8>) -> CaughtFile {
        CaughtFile {
            name: "a.png".to_owned(),
            media_type: Some(media_type.to_owned()),
            content_id: Some(id.to_owned()),
            content: Bytes::from(content),
        }
    }

    #[test]
    fn a_reference_becomes_the_picture_and_nothing_else_changes() {
        let files = [
            file("a", "image/png", vec![0]),
            file("ab@x.org", "image/gif", vec![1]),
            file("page", "text/html", vec![2]),
            file("drawing", "image/svg+xml", vec![3]),
        ];
        for (html, expected) in [
            ("<img src='cid:a'>", "<img src='data:image/png;base64,AA=='>"),
            ("<img src=cid:ab%40x.org>", "<img src=data:image/gif;base64,AQ==>"),
            ("url(cid:ab@x.org)", "url(data:image/gif;base64,AQ==)"),
            ("<a href=cid:page> cid:drawing", "<a href=cid:page> cid:drawing"),
            ("cid:", "cid:"),
            ("cid:b cid:cid:a", "cid:b cid:cid:a"),
            ("é<p>cid</p>", "é<p>cid</p>"),
        ] {
            assert_eq!(show_images(html, &files), expected);
        }
    }

    #[test]
    fn a_document_grows_by_so_much_and_no_more() {
        let files = [file("a", "image/png", vec![0; 3 << 20])];
        let shown = show_images(&"<img src='cid:a'>".repeat(1_000), &files);
        assert!((16 << 20..MAX_ADDED_BYTES + 100_000).contains(&shown.len()), "{}", shown.len());
        assert!(shown.ends_with("<img src='cid:a'>"));
    }
}
