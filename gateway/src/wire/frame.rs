//! Whole messages: a header of 16 bytes and the rest.
//!
//! INVARIANT: a message takes memory only as its bytes arrive, and no more than the limit.

use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// MongoDB's limit of a message, which `hello` announces.
pub const MAX_MESSAGE: usize = 48_000_000;

/// The limit for a client that has not logged in: its messages have a handshake or a login.
pub const MAX_UNKNOWN_MESSAGE: usize = 64 * 1024;

pub const HEADER: usize = 16;

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

/// Waits until the first byte of a message can be read; false at the end of the connection.
pub async fn await_message(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<bool> {
    Ok(!reader.fill_buf().await?.is_empty())
}

pub async fn read(reader: &mut (impl AsyncRead + Unpin), limit: usize) -> io::Result<Frame> {
    let mut header = [0; HEADER];
    reader.read_exact(&mut header).await?;
    let [length, request, _, opcode] = numbers(&header);
    let length = usize::try_from(length).ok().filter(|length| (HEADER..=limit).contains(length)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes, the limit is {limit}"))
    })?;
    let mut body = Vec::new();
    let rest = (length - HEADER) as u64;
    if reader.take(rest).read_to_end(&mut body).await? as u64 != rest {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Frame { request, opcode, header, body })
}

pub async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    reply_to: i32,
    opcode: i32,
    body: &[&[u8]],
) -> io::Result<()> {
    let length = HEADER + body.iter().map(|part| part.len()).sum::<usize>();
    let length = i32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut header = Vec::with_capacity(HEADER);
    for number in [length, 0, reply_to, opcode] {
        header.extend(number.to_le_bytes());
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
