//! Control tokens by their shape, in the texts that a template prints.

/// Longest name between delimiters.
const MAX_NAME: usize = 48;

/// Texts that are control tokens in every model's vocabulary that has them: `<|…|>`, `<｜…｜>`, `<|…>`, `<…|>`, `[NAME]`,
/// `<<NAME>>`, `<start_of_…>`, `<end_of_…>`, `<s>`, `</s>`, `<bos>`, `<eos>`.
pub(crate) fn always(text: &str) -> Vec<&str> {
    found(text, |name, open| match open {
        Open::Angle => {
            let barred = |c| name.starts_with(c) || name.ends_with(c);
            let boundary = ["start_of_", "end_of_", "begin_of_"].iter().any(|prefix| name.starts_with(prefix));
            let short = ["s", "/s", "bos", "eos", "pad", "unk", "sop", "eop"].contains(&name);
            (name.len() > 1 && (barred('|') || barred('\u{ff5c}'))) || boundary || short
        }
        Open::Square => {
            let name = name.strip_prefix('/').unwrap_or(name);
            name.len() >= 3 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        }
        Open::Double => name.trim_start_matches('/').bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
    })
}

/// Texts that are control tokens in the vocabulary of some models, and words of markup in others: `<name>`, `</name>`.
pub(crate) fn perhaps(text: &str) -> Vec<&str> {
    found(text, |name, open| {
        let name = name.strip_prefix('/').unwrap_or(name);
        open == Open::Angle
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':'))
    })
}

/// Returns true for a text of any of these shapes.
pub(crate) fn is_control(text: &str) -> bool {
    [always(text), perhaps(text)].concat().contains(&text)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Angle,
    Double,
    Square,
}

fn found(text: &str, accept: impl Fn(&str, Open) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(['<', '[']) {
        let rest = text.get(at..).unwrap_or("");
        let (open, start, close) = if rest.starts_with("<<") {
            (Open::Double, 2, ">>")
        } else if rest.starts_with('<') {
            (Open::Angle, 1, ">")
        } else {
            (Open::Square, 1, "]")
        };
        let Some(inner) = rest.get(start..) else { continue };
        // The search ends with the longest name.
        let limit = inner.char_indices().map(|(at, _)| at).find(|at| *at > MAX_NAME).unwrap_or(inner.len());
        let Some(length) = inner.get(..limit).and_then(|inner| inner.find(close)) else { continue };
        let name = inner.get(..length).unwrap_or("");
        let clean = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<>[]{}\"'=".contains(c));
        if clean && accept(name, open) {
            found.extend(rest.get(..start + length + close.len()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_control_tokens_are_found() {
        let text =
            "<|im_start|>user\n<\u{ff5c}User\u{ff5c}> [INST] <<SYS>> <start_of_turn> <s> <|tool> <turn|> [/INST]";
        let expected = [
            "<|im_start|>",
            "<\u{ff5c}User\u{ff5c}>",
            "[INST]",
            "<<SYS>>",
            "<start_of_turn>",
            "<s>",
            "<|tool>",
            "<turn|>",
            "[/INST]",
        ];
        assert_eq!(always(text), expected);
    }

    #[test]
    fn prose_and_markup_have_no_shape() {
        for text in ["a < b > c", "[a]", "[1]", "[OK]", "<a href=\"x\">", "<>", "<function=f>", "x[A_B", "<b>", "[]"] {
            assert_eq!(always(text), Vec::<&str>::new(), "{text}");
        }
        assert_eq!(perhaps("<think> </tool_call> <seed:x> <function=f> <1>"), ["<think>", "</tool_call>", "<seed:x>"]);
        assert!(is_control("<think>") && is_control("[INST]") && !is_control("a<think>"));
    }
}
