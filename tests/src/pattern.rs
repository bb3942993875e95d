//! Bodies whose every byte can be checked.

/// Bytes of which no two neighbours are alike.
#[must_use]
pub fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

/// As `zlib.crc32`.
pub fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    !bytes.into_iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}
