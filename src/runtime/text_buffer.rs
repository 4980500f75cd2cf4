//! Text that is put together part by part, such as a request with files in it.

use std::ops::Deref;

use base64::write::StrConsumer;
use memmap2::MmapMut;

/// Smallest length of a text that lies in a memory map of its own.
const MAPPED_FROM_BYTES: usize = 1024 * 1024;

/// Text whose parts are appended, as bytes.
///
/// A large one lies in a memory map of its own, which goes back to the system at once when it is
/// dropped. The allocator would keep it for a while, in each thread that has put one together.
#[derive(Debug)]
pub struct TextBuffer(Buffer);

#[derive(Debug)]
enum Buffer {
    Small(Vec<u8>),
    Large { map: MmapMut, len: usize },
}

impl TextBuffer {
    /// An empty text with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        if bytes >= MAPPED_FROM_BYTES
            && let Ok(map) = MmapMut::map_anon(bytes)
        {
            return Self(Buffer::Large { map, len: 0 });
        }
        // The text is small, or the system has no map left. Then the allocator provides the memory.
        Self(Buffer::Small(Vec::with_capacity(bytes)))
    }

    /// Appends a part. Copies the text only if it has no room for that.
    pub fn push_str(&mut self, part: &str) {
        self.push(part.as_bytes());
    }

    /// Number of bytes that fit into it, its own included.
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Buffer::Small(bytes) => bytes.capacity(),
            Buffer::Large { map, .. } => map.len(),
        }
    }

    fn push(&mut self, part: &[u8]) {
        match &mut self.0 {
            Buffer::Small(bytes) => bytes.extend_from_slice(part),
            Buffer::Large { map, len } => {
                let end = *len + part.len();
                if let Some(room) = map.get_mut(*len..end) {
                    room.copy_from_slice(part);
                    *len = end;
                    return;
                }
                let mut larger = Self::with_capacity(2 * end);
                larger.push(self);
                larger.push(part);
                *self = larger;
            }
        }
    }
}

impl Deref for TextBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Buffer::Small(bytes) => bytes,
            Buffer::Large { map, len } => &map[..*len],
        }
    }
}

impl From<String> for TextBuffer {
    fn from(text: String) -> Self {
        Self(Buffer::Small(text.into_bytes()))
    }
}

impl StrConsumer for TextBuffer {
    fn consume(&mut self, part: &str) {
        self.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_all_parts_whatever_room_it_was_given() {
        let part = "abc\u{fc}".repeat(1_000);
        for room in [0, 10, MAPPED_FROM_BYTES - 1, MAPPED_FROM_BYTES, 6_000_000] {
            let mut text = TextBuffer::with_capacity(room);
            for _ in 0..1_000 {
                text.push_str(&part);
            }
            assert!(*text == *part.repeat(1_000).as_bytes(), "{room}");
            assert!(text.capacity() >= text.len().max(room));
            assert!(room < text.len() || text.capacity() == room, "it was not copied");
        }
    }
}
