//! CRC-32C, with which a client may end an OP_MSG.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0x82F6_3B78 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

/// The checksum of bytes that are given in parts.
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    !parts.iter().flat_map(|part| part.iter()).fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_published_one() {
        assert_eq!(super::crc32c(&[b"1234", b"56789"]), 0xE306_9283);
        assert_eq!(super::crc32c(&[&[0; 32]]), 0x8A91_36AA);
    }
}
