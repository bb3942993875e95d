//! Sizes in bytes, written in IEC units: `"7GiB"`.
//!
//! Only powers of 1024 and only whole numbers: the written value is exactly a cgroup's limit. Units that could mean two
//! things (`GB`, `G`) are refused with the one to use.
//!
//! Invariant: `Display` and `FromStr` are inverse.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Units from the largest down, with their bytes.
const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size of this many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of this many KiB (1024 bytes); saturates at the largest size.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// A size of this many MiB (1024² bytes); saturates at the largest size.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// A size of this many GiB (1024³ bytes); saturates at the largest size.
    #[must_use]
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    /// In the largest unit that says it without a remainder; `0B` for nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, bytes)| self.0 != 0 && self.0.is_multiple_of(*bytes));
        match exact {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "0B"),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reasons why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text does not begin with a number.
    #[error("a size is a whole number and a unit")]
    NoNumber,
    /// A number without a unit.
    #[error("a size needs a unit: B, KiB, MiB, GiB or TiB")]
    NoUnit,
    /// A fraction of a unit.
    #[error("write a whole number of a smaller unit: 1.5GiB is 1536MiB")]
    Fraction,
    /// A unit in another spelling.
    #[error("use {unit}: sizes count in powers of 1024")]
    Unit {
        /// The unit to use.
        unit: &'static str,
    },
    /// An unknown unit behind the number.
    #[error("the units are B, KiB, MiB, GiB and TiB, without a space before them")]
    UnknownUnit,
    /// More than 2⁶⁴ bytes.
    #[error("the number is too large")]
    TooLarge,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::NoNumber);
        }
        if unit.is_empty() {
            return Err(SizeError::NoUnit);
        }
        if unit.starts_with('.') {
            return Err(SizeError::Fraction);
        }
        let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(meant_unit(unit).map_or(SizeError::UnknownUnit, |unit| SizeError::Unit { unit }));
        };
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        number.checked_mul(*bytes).map(Self).ok_or(SizeError::TooLarge)
    }
}

/// The IEC unit that `GB`, `G`, `gib` and the like stand for.
fn meant_unit(written: &str) -> Option<&'static str> {
    UNITS.iter().map(|(unit, _)| *unit).find(|unit| {
        let letter = &unit[..1];
        [letter, &format!("{letter}B"), unit].iter().any(|form| form.eq_ignore_ascii_case(written))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("0B", 0, "0B"),
            ("1B", 1, "1B"),
            ("1023B", 1023, "1023B"),
            ("1024KiB", 1 << 20, "1MiB"),
            ("7GiB", 7_516_192_768, "7GiB"),
            ("1536MiB", 1_610_612_736, "1536MiB"),
            ("16777215TiB", 16_777_215 << 40, "16777215TiB"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_the_reason() {
        for (text, error) in [
            ("", SizeError::NoNumber),
            ("GiB", SizeError::NoNumber),
            ("-1GiB", SizeError::NoNumber),
            ("+1GiB", SizeError::NoNumber),
            ("7", SizeError::NoUnit),
            ("1.5GiB", SizeError::Fraction),
            ("7GB", SizeError::Unit { unit: "GiB" }),
            ("7g", SizeError::Unit { unit: "GiB" }),
            ("7mib", SizeError::Unit { unit: "MiB" }),
            ("7b", SizeError::Unit { unit: "B" }),
            ("7 GiB", SizeError::UnknownUnit),
            ("7PiB", SizeError::UnknownUnit),
            ("7GiB ", SizeError::UnknownUnit),
            ("16777216TiB", SizeError::TooLarge),
            ("99999999999999999999B", SizeError::TooLarge),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_size_survives_being_written_down(bytes: u64, shift in 0_u32..64) {
            let size = ByteSize::from_bytes(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
