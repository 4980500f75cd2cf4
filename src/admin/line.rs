//! Lines of bounded length: how requests and responses are told apart on the socket.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A whole line, its break included.
    Whole(Vec<u8>),
    /// More than a line may have; what follows cannot be told apart.
    TooLong,
    /// The other side ended, perhaps within a line.
    End,
}

/// Reads a line of at most `max` bytes, its break included.
pub(super) async fn read(reader: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let max = u64::try_from(max).unwrap_or(u64::MAX);
    let read = reader.take(max).read_until(b'\n', &mut line).await?;
    Ok(match line.last() {
        Some(b'\n') => Line::Whole(line),
        Some(_) if u64::try_from(read).unwrap_or(u64::MAX) == max => Line::TooLong,
        Some(_) | None => Line::End,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_whole_too_long_or_the_end() {
        let mut reader: &[u8] = b"12345\n123\nab";
        assert_eq!(read(&mut reader, 6).await.unwrap(), Line::Whole(b"12345\n".to_vec()));
        assert_eq!(read(&mut reader, 6).await.unwrap(), Line::Whole(b"123\n".to_vec()));
        assert_eq!(read(&mut reader, 6).await.unwrap(), Line::End);
        let mut reader: &[u8] = b"123456\n";
        assert_eq!(read(&mut reader, 6).await.unwrap(), Line::TooLong);
    }
}
