//! OP_COMPRESSED: a message within a message.
//!
//! INVARIANT: the announced size is checked against the message limit first. Inflating stops one byte beyond the announced size;
//! Snappy's own length must equal it before anything is inflated.

use super::frame::{HEADER, MAX_MESSAGE};
use super::{Bytes, Violation};
use std::io::{self, Read, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    Snappy,
    Zlib,
    Zstd,
}

/// All compressors, in the order of their numbers in the protocol, which begin at 1.
pub const ALL: [(&str, Compressor); 3] =
    [("snappy", Compressor::Snappy), ("zlib", Compressor::Zlib), ("zstd", Compressor::Zstd)];

impl Compressor {
    pub fn of_name(name: &str) -> Option<Self> {
        ALL.iter().find(|(known, _)| *known == name).map(|(_, compressor)| *compressor)
    }

    fn number(self) -> u8 {
        match self {
            Compressor::Snappy => 1,
            Compressor::Zlib => 2,
            Compressor::Zstd => 3,
        }
    }

    fn inflate(self, bytes: &[u8], size: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        // Reads one byte beyond the announced size, to detect a longer body.
        let limit = size as u64 + 1;
        match self {
            Compressor::Snappy => {
                if snap::raw::decompress_len(bytes)? != size {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                out = snap::raw::Decoder::new().decompress_vec(bytes)?;
            }
            Compressor::Zlib => {
                flate2::read::ZlibDecoder::new(bytes).take(limit).read_to_end(&mut out)?;
            }
            Compressor::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
                // Refuses windows above 2^26 bytes: the least power of two that holds a message of `MAX_MESSAGE`.
                decoder.window_log_max(26)?;
                decoder.take(limit).read_to_end(&mut out)?;
            }
        }
        Ok(out)
    }

    fn deflate(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        Ok(match self {
            Compressor::Snappy => snap::raw::Encoder::new().compress_vec(bytes)?,
            Compressor::Zlib => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(bytes)?;
                encoder.finish()?
            }
            Compressor::Zstd => zstd::bulk::compress(bytes, 3)?,
        })
    }
}

/// Inflates the body of an OP_COMPRESSED. Returns the inner opcode, the inner body, and the compressor; None for number 0, which means that
/// the body is not compressed. `limit` is that of the whole inner message, with its header.
pub fn decompress(
    body: &[u8],
    negotiated: &[Compressor],
    limit: usize,
) -> Result<(i32, Vec<u8>, Option<Compressor>), Violation> {
    let mut bytes = Bytes(body);
    let (opcode, size, number) = (bytes.u32()?.cast_signed(), bytes.length()?, bytes.byte()?);
    if size > limit.min(MAX_MESSAGE).saturating_sub(HEADER) {
        return Err(Violation("a compressed message is too large"));
    }
    if number == 0 {
        return if bytes.0.len() == size {
            Ok((opcode, bytes.0.to_vec(), None))
        } else {
            Err(Violation("the size of a message is wrong"))
        };
    }
    let compressor = negotiated.iter().find(|compressor| compressor.number() == number);
    let compressor = *compressor.ok_or(Violation("this compressor was not negotiated"))?;
    let inner = compressor.inflate(bytes.0, size).map_err(|_| Violation("a compressed message is damaged"))?;
    if inner.len() != size {
        return Err(Violation("the size of a compressed message is wrong"));
    }
    Ok((opcode, inner, Some(compressor)))
}

/// Makes the body of an OP_COMPRESSED.
pub fn compress(opcode: i32, body: &[&[u8]], compressor: Compressor) -> io::Result<Vec<u8>> {
    let inner = body.concat();
    let size = u32::try_from(inner.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut out = Vec::new();
    out.extend(opcode.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.push(compressor.number());
    out.extend(compressor.deflate(&inner)?);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: [Compressor; 3] = [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd];

    #[test]
    fn what_is_compressed_is_inflated_again() {
        for compressor in EVERY {
            let compressed = compress(2013, &[b"abc", &[7; 5000]], compressor).unwrap();
            let (opcode, inner, found) = decompress(&compressed, &EVERY, 5003 + HEADER).unwrap();
            assert_eq!((opcode, found, inner.len()), (2013, Some(compressor), 5003));
            assert!(decompress(&compressed, &[], 10_000).is_err(), "not negotiated");
            assert!(decompress(&compressed, &EVERY, 5002 + HEADER).is_err(), "over the limit");
        }
    }

    #[test]
    fn a_message_inflates_to_the_announced_size_only() {
        for compressor in EVERY {
            for wrong in [4_999u32, 5_001, 16] {
                let mut compressed = compress(2013, &[&[0; 5000]], compressor).unwrap();
                compressed[4..8].copy_from_slice(&wrong.to_le_bytes());
                assert!(decompress(&compressed, &EVERY, MAX_MESSAGE).is_err(), "{compressor:?} {wrong}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100), number in 0u8..5) {
            let mut body = vec![0xDD, 7, 0, 0, 200, 0, 0, 0, number];
            body.extend(bytes);
            let _ = decompress(&body, &EVERY, MAX_MESSAGE);
        }
    }
}
