//! Line of JSON, member by member. Every answer waits for one, so nothing is allocated or parsed for it.

/// A line that is being written.
#[derive(Debug)]
pub(crate) struct Line<'a>(pub(crate) &'a mut Vec<u8>);

impl Line<'_> {
    /// Appends what is JSON already.
    #[inline]
    pub(crate) fn raw(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// Appends a text, and what comes after it; its quotes are in `before` and `after`.
    #[inline]
    pub(crate) fn text(&mut self, before: &str, text: &str, after: &str) {
        self.raw(before);
        // Without a branch for each byte, so that many are looked at together.
        let is_special = |byte: u8| u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\');
        if text.bytes().fold(0, |special, byte| special | is_special(byte)) == 0 {
            self.raw(text);
        } else {
            self.escaped(text);
        }
        self.raw(after);
    }

    #[cold]
    fn escaped(&mut self, text: &str) {
        self.0.pop(); // serde_json brings the quotes
        let escaped = serde_json::to_writer(&mut *self.0, text);
        debug_assert!(escaped.is_ok(), "a text is always JSON, and memory takes it");
        self.0.pop();
    }

    /// Appends a member with a number.
    pub(crate) fn number(&mut self, key: &str, number: u64) {
        self.raw(key);
        let mut digits = [0; 20];
        self.0.extend_from_slice(decimal(number, &mut digits));
    }

    /// Appends a member with seconds, in whole microseconds.
    pub(crate) fn seconds(&mut self, key: &str, seconds: f64) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "beyond the range it is the limit")]
        let micros = (seconds * 1e6 + 0.5) as u64;
        self.number(key, micros / 1_000_000);
        let mut digits = [b'0'; 7];
        decimal(1_000_000 + micros % 1_000_000, &mut digits);
        digits[0] = b'.';
        self.0.extend_from_slice(&digits);
    }
}

/// Digits of a number, at the end of a buffer that has room for them.
fn decimal<const N: usize>(mut number: u64, digits: &mut [u8; N]) -> &[u8] {
    let mut begin = N;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        begin -= 1;
        if number == 0 {
            break;
        }
    }
    &digits[begin..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(write: impl FnOnce(&mut Line<'_>)) -> serde_json::Value {
        let mut line = Vec::new();
        write(&mut Line(&mut line));
        assert!(!line.contains(&b'\n'));
        serde_json::from_slice(&line).unwrap()
    }

    proptest! {
        #[test]
        fn texts_and_numbers_read_back(text in any::<String>(), number in any::<u64>(), micros in 0_u64..1 << 42) {
            prop_assert_eq!(value(|line| line.text("\"", &text, "\"")), text);
            prop_assert_eq!(value(|line| line.number("", number)), number);
            let seconds = micros as f64 / 1e6;
            prop_assert_eq!(value(|line| line.seconds("", seconds)), seconds);
        }
    }

    #[test]
    fn the_limits_of_numbers_are_written() {
        for number in [0, 9, 10, u64::MAX] {
            assert_eq!(value(|line| line.number("", number)), number);
        }
        for seconds in [0.0, 0.000_001, 0.999_999, 1.0, 1e9] {
            assert_eq!(value(|line| line.seconds("", seconds)), seconds);
        }
        assert_eq!(value(|line| line.seconds("", 0.999_999_9)), 1.0);
        for seconds in [-1.0, f64::NAN] {
            assert_eq!(value(|line| line.seconds("", seconds)), 0.0);
        }
    }
}
