//! Characters that are split over pieces.

/// Decoder of UTF-8 that comes in pieces. What cannot become a character is replaced by U+FFFD.
#[derive(Debug, Default)]
pub struct Characters {
    /// Beginning of a character; at most three bytes.
    begun: Vec<u8>,
}

impl Characters {
    /// Decodes the next bytes.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> String {
        if self.begun.is_empty()
            && let Ok(text) = str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(str::from_utf8(valid).unwrap_or_default()); // valid up to there
                    let Some(wrong) = error.error_len() else {
                        self.begun = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = after.get(wrong..).unwrap_or_default();
                }
            }
        }
    }

    /// Ends the text: a character that was begun is replaced.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }
}
