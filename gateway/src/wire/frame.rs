//! Whole messages: a header of 16 bytes and the rest.
//!
//! INVARIANT: a message takes memory only as its bytes arrive, and no more than the limit.

use super::Bytes;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// MongoDB's limit of a message, which `hello` announces.
pub const MAX_MESSAGE: usize = 48_000_000;

/// The limit for a client that has not logged in, which sends only handshakes and logins.
pub const MAX_UNKNOWN_MESSAGE: usize = 64 * 1024;

pub const HEADER: usize = 16;

/// The length of what precedes the compressed bytes in a message: the inner opcode, the inflated size, and the compressor.
const COMPRESSED_PREFIX: usize = 9;

pub const OP_REPLY: i32 = 1;
pub const OP_QUERY: i32 = 2004;
pub const OP_COMPRESSED: i32 = 2012;
pub const OP_MSG: i32 = 2013;

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub request: i32,
    pub opcode: i32,
    pub header: [u8; HEADER],
    /// the bytes after the header
    pub body: Vec<u8>,
}

/// A message of which only the beginning was read.
#[derive(Debug)]
pub struct Announced {
    frame: Frame,
    pub length: usize,
    /// the inflated size of a compressed message; otherwise the length
    pub content: usize,
}

/// Waits until the first byte of a message can be read; false at the end of the connection.
pub async fn await_message(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<bool> {
    Ok(!reader.fill_buf().await?.is_empty())
}

/// Reads a message's header; for a compressed message, also what precedes the compressed bytes.
pub async fn announced(reader: &mut (impl AsyncRead + Unpin), limit: usize) -> io::Result<Announced> {
    let mut header = [0; HEADER];
    reader.read_exact(&mut header).await?;
    let [length, request, _, opcode] = numbers(&header);
    let length = usize::try_from(length).ok().filter(|length| (HEADER..=limit).contains(length)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes, the limit is {limit}"))
    })?;
    let mut announced =
        Announced { frame: Frame { request, opcode, header, body: Vec::new() }, length, content: length };
    if opcode == OP_COMPRESSED {
        fill(reader, &mut announced.frame.body, (length - HEADER).min(COMPRESSED_PREFIX)).await?;
        // A size that is missing, negative or beyond the limit is refused when the message is decompressed.
        let size = Bytes(announced.frame.body.get(4..).unwrap_or_default()).length();
        announced.content = size.unwrap_or_default().min(limit);
    }
    Ok(announced)
}

/// Reads the rest of a message.
pub async fn read(reader: &mut (impl AsyncRead + Unpin), announced: Announced) -> io::Result<Frame> {
    let Announced { mut frame, length, .. } = announced;
    fill(reader, &mut frame.body, length - HEADER).await?;
    Ok(frame)
}

/// Reads until there are `length` bytes.
async fn fill(reader: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let rest = length.saturating_sub(bytes.len()) as u64;
    if reader.take(rest).read_to_end(bytes).await? as u64 != rest {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Writes a message with a number of its own, which answers the message with the number `reply_to`.
pub async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    (number, reply_to): (i32, i32),
    opcode: i32,
    body: &[&[u8]],
) -> io::Result<()> {
    let length = HEADER + body.iter().map(|part| part.len()).sum::<usize>();
    let length = i32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut header = Vec::with_capacity(HEADER);
    for field in [length, number, reply_to, opcode] {
        header.extend(field.to_le_bytes());
    }
    writer.write_all(&header).await?;
    for part in body {
        writer.write_all(part).await?;
    }
    writer.flush().await
}

fn numbers(header: &[u8; HEADER]) -> [i32; 4] {
    let (chunks, _) = header.as_chunks::<4>();
    let mut numbers = [0; 4];
    for (number, chunk) in numbers.iter_mut().zip(chunks) {
        *number = i32::from_le_bytes(*chunk);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_is_announced_before_it_is_read() {
        let (mut here, mut there) = tokio::io::duplex(1024);
        let inner = [&2013u32.to_le_bytes()[..], &70_000u32.to_le_bytes(), &[2], b"compressed"].concat();
        write(&mut there, (0, 0), OP_COMPRESSED, &[&inner[..9]]).await.unwrap();
        let mut header = [0; HEADER + 9];
        here.read_exact(&mut header).await.unwrap();
        let length = HEADER + inner.len();
        header[..4].copy_from_slice(&(length as u32).to_le_bytes());
        there.write_all(&header).await.unwrap();
        let found = announced(&mut here, 1_000_000).await.unwrap();
        assert_eq!((found.length, found.content), (length, 70_000));
        there.write_all(&inner[9..]).await.unwrap();
        assert_eq!(read(&mut here, found).await.unwrap().body, inner);
        // Wrong sizes, and a message without a size.
        for (body, content) in [(&[0xFF; 9][..], 0), (&[0x7F; 9], 100), (&[1; 3], 0)] {
            write(&mut there, (0, 0), OP_COMPRESSED, &[body]).await.unwrap();
            let found = announced(&mut here, 100).await.unwrap();
            assert_eq!(found.content, content);
            assert_eq!(read(&mut here, found).await.unwrap().body, body);
        }
    }
}
