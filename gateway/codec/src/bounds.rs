//! Checks of values against the bounds of their parameters.

use omni_request_error::InvalidRequest;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// A value within its bounds.
///
/// # Errors
/// A value outside.
pub fn within<T: PartialOrd + Display + Copy>(
    parameter: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<Option<T>, InvalidRequest> {
    match value {
        Some(value) if !range.contains(&value) => {
            let (least, most) = (range.start(), range.end());
            let message = format!("`{parameter}` is {value}: it has to be from {least} to {most}");
            Err(InvalidRequest::new(parameter, message))
        }
        value => Ok(value),
    }
}

/// A number above 0 and up to `most`.
///
/// # Errors
/// A number outside.
pub fn positive(parameter: &str, value: Option<f32>, most: f32) -> Result<Option<f32>, InvalidRequest> {
    match value {
        Some(value) if !(value > 0.0 && value <= most) => {
            let message = format!("`{parameter}` is {value}: it has to be above 0, and {most} at most");
            Err(InvalidRequest::new(parameter, message))
        }
        value => Ok(value),
    }
}

/// Checks the length of an array.
///
/// # Errors
/// Too few items, or too many.
pub fn count(parameter: &str, items: usize, range: RangeInclusive<usize>) -> Result<(), InvalidRequest> {
    if range.contains(&items) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    let message = match (items, *least) {
        (0, 1) => format!("`{parameter}` is empty"),
        _ => format!("`{parameter}` has {items} items: there have to be {least} to {most}"),
    };
    Err(InvalidRequest::new(parameter, message))
}

/// Checks the length of a text in bytes.
///
/// # Errors
/// An empty text, or one that is too long.
pub fn length(parameter: &str, text: &str, most: usize) -> Result<(), InvalidRequest> {
    match text.len() {
        0 => Err(InvalidRequest::new(parameter, format!("`{parameter}` is empty"))),
        length if length > most => {
            let message = format!("`{parameter}` has {length} bytes: there may be {most}");
            Err(InvalidRequest::new(parameter, message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T, InvalidRequest>) -> String {
        result.unwrap_err().message
    }

    #[test]
    fn bounds_belong_to_the_range() {
        for value in [None, Some(0.0), Some(2.0)] {
            assert_eq!(within("t", value, 0.0..=2.0), Ok(value));
        }
        assert_eq!(message(within("t", Some(2.5), 0.0..=2.0)), "`t` is 2.5: it has to be from 0 to 2");
        assert_eq!(message(within("t", Some(f32::NAN), 0.0..=2.0)), "`t` is NaN: it has to be from 0 to 2");
    }

    #[test]
    fn zero_is_not_positive() {
        assert_eq!(positive("p", Some(1.0), 1.0), Ok(Some(1.0)));
        for value in [0.0, -1.0, 1.5, f32::NAN] {
            assert!(message(positive("p", Some(value), 1.0)).ends_with("it has to be above 0, and 1 at most"));
        }
    }

    #[test]
    fn lengths_are_bounded() {
        assert_eq!(count("a", 2, 1..=2), Ok(()));
        assert_eq!(message(count("a", 0, 1..=2)), "`a` is empty");
        assert_eq!(message(count("a", 3, 1..=2)), "`a` has 3 items: there have to be 1 to 2");
        assert_eq!(length("t", "ab", 2), Ok(()));
        assert_eq!(message(length("t", "abc", 2)), "`t` has 3 bytes: there may be 2");
        assert_eq!(message(length("t", "", 2)), "`t` is empty");
    }
}
