//! Durations as people write them: `"500ms"`, `"30s"`, `"10m"`, `"2h"`, `"1d"`.
//!
//! Exactly one whole number and one unit: every duration has one obvious spelling. The values are plain
//! [`std::time::Duration`]s.
//!
//! Invariant: [`parse`] undoes [`format()`] for whole milliseconds, the finest unit.

use std::time::Duration;

use serde::Serializer;

/// Units from the largest down, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reasons why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not begin with a number.
    #[error("a duration is a whole number and a unit")]
    NoNumber,
    /// A number without a unit.
    #[error("a duration needs a unit: ms, s, m, h or d")]
    NoUnit,
    /// A fraction of a unit.
    #[error("write a whole number of a smaller unit: 1.5s is 1500ms")]
    Fraction,
    /// An unknown unit behind the number.
    #[error("the units are ms, s, m, h and d, without a space before them, and only one of them")]
    UnknownUnit,
    /// More milliseconds than 2⁶⁴.
    #[error("the number is too large")]
    TooLarge,
}

/// Reads a duration.
///
/// # Errors
///
/// The text is not one whole number followed by one unit.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(DurationError::NoNumber);
    }
    if unit.is_empty() {
        return Err(DurationError::NoUnit);
    }
    if unit.starts_with('.') {
        return Err(DurationError::Fraction);
    }
    let Some((_, milliseconds)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::UnknownUnit);
    };
    let number: u64 = number.parse().map_err(|_| DurationError::TooLarge)?;
    number.checked_mul(*milliseconds).map(Duration::from_millis).ok_or(DurationError::TooLarge)
}

/// Writes a duration in the largest unit that says it without a remainder; what is finer than a millisecond is cut off.
#[must_use]
pub fn format(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let exact = UNITS.iter().find(|(_, unit)| milliseconds != 0 && milliseconds.is_multiple_of(u128::from(*unit)));
    match exact {
        Some((name, unit)) => format!("{}{name}", milliseconds / u128::from(*unit)),
        None => "0s".to_owned(),
    }
}

/// For `#[serde(serialize_with)]`: as [`format()`] writes it.
pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format(*duration))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, milliseconds, shown) in [
            ("0s", 0, "0s"),
            ("500ms", 500, "500ms"),
            ("1000ms", 1_000, "1s"),
            ("90s", 90_000, "90s"),
            ("10m", 600_000, "10m"),
            ("24h", 86_400_000, "1d"),
        ] {
            let duration = parse(text).unwrap();
            assert_eq!((duration.as_millis(), format(duration).as_str()), (milliseconds, shown), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_reason() {
        for (text, error) in [
            ("", DurationError::NoNumber),
            ("s", DurationError::NoNumber),
            ("-1s", DurationError::NoNumber),
            ("30", DurationError::NoUnit),
            ("1.5s", DurationError::Fraction),
            ("30 s", DurationError::UnknownUnit),
            ("30sec", DurationError::UnknownUnit),
            ("1h30m", DurationError::UnknownUnit),
            ("30S", DurationError::UnknownUnit),
            ("99999999999999999999s", DurationError::TooLarge),
            ("999999999999999999d", DurationError::TooLarge),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_duration_survives_being_written_down(count in 0_u64..1 << 30, unit in 0..UNITS.len()) {
            let duration = Duration::from_millis(count * UNITS[unit].1);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&text);
        }
    }
}
