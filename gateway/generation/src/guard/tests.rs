//! Tests of the guard: tables and properties over random pieces.

use super::*;
use proptest::prelude::*;

fn guard(stop: &[&str], pieces: Option<u32>) -> OutputGuard {
    let stop: Vec<String> = stop.iter().map(|text| (*text).to_owned()).collect();
    let stop = StopStrings::new(&stop);
    OutputGuard::new(GuardLimits { stop, pieces, prompt_tokens: 7, tokens: true })
}

fn piece(bytes: &[u8]) -> Piece {
    Piece { bytes: bytes.to_vec(), token: None }
}

/// Runs pieces through a guard: the text that left, and the end.
fn run(mut guard: OutputGuard, pieces: &[&[u8]]) -> (String, Finish) {
    let mut out = Guarded::default();
    for bytes in pieces {
        if let Some(finish) = guard.push(piece(bytes), &mut out) {
            assert_eq!(guard.finish(EngineFinish::default(), &mut out), None, "one end only");
            assert_eq!(guard.push(piece(b"more"), &mut out), None);
            return (out.text, finish);
        }
    }
    let finish = guard.finish(EngineFinish::default(), &mut out).unwrap();
    assert_eq!(guard.finish(EngineFinish::default(), &mut out), None, "one end only");
    (out.text, finish)
}

fn stopped_by(sequence: &str) -> FinishReason {
    FinishReason::Stop { sequence: Some(sequence.to_owned()) }
}

#[test]
fn a_stop_string_split_over_pieces_ends_the_text_before_it() {
    let (text, finish) = run(guard(&["</end>", "STOP"], None), &[b"a</e", b"nd", b"> rest STOP"]);
    assert_eq!((text.as_str(), finish.reason), ("a", stopped_by("</end>")));
    let (text, finish) = run(guard(&["</end>"], None), &[b"a</e", b"n</en"]);
    assert_eq!((text.as_str(), finish.reason), ("a</en</en", FinishReason::Stop { sequence: None }));
}

#[test]
fn of_overlapping_stop_strings_the_first_to_end_counts_and_of_those_the_longest() {
    let (text, finish) = run(guard(&["bcd", "c"], None), &[b"abcd"]);
    assert_eq!((text.as_str(), finish.reason), ("ab", stopped_by("c")));
    let (text, finish) = run(guard(&["c", "abc"], None), &[b"xabc"]);
    assert_eq!((text.as_str(), finish.reason), ("x", stopped_by("abc")));
    let (text, finish) = run(guard(&["aab"], None), &[b"a", b"a", b"a", b"b"]);
    assert_eq!((text.as_str(), finish.reason), ("a", stopped_by("aab")));
}

#[test]
fn halves_of_a_character_are_joined_and_a_lost_half_is_replaced() {
    let euro = "€".as_bytes();
    assert_eq!(run(guard(&[], None), &[&euro[..1], &euro[1..2], &euro[2..]]).0, "€");
    assert_eq!(run(guard(&["€"], None), &[b"x", &euro[..1], &euro[1..]]).0, "x");
    assert_eq!(run(guard(&[], None), &[b"a", &euro[..2]]).0, "a\u{fffd}");
    assert_eq!(run(guard(&[], None), &[&euro[..2], b"b\xff"]).0, "\u{fffd}b\u{fffd}");
}

#[test]
fn the_limit_of_pieces_ends_with_length_and_empty_pieces_do_not_count() {
    let (text, finish) = run(guard(&[], Some(2)), &[b"a", b"", b"b", b"c"]);
    assert_eq!((text.as_str(), finish.reason), ("ab", FinishReason::Length));
    assert_eq!((finish.usage.prompt_tokens, finish.usage.completion_tokens), (7, 2));
    let (text, _) = run(guard(&["bc"], Some(2)), &[b"a", b"b", b"c"]);
    assert_eq!(text, "ab", "what was held back leaves");
}

#[test]
fn usage_of_the_engine_stands_before_that_of_the_node() {
    let usage = Usage { prompt_tokens: 3, completion_tokens: 9, cached_tokens: 2, reasoning_tokens: 1 };
    let mut out = Guarded::default();
    let mut guard = guard(&[], None);
    guard.push(piece(b"a"), &mut out);
    let finish = guard.finish(EngineFinish { reason: Some(FinishReason::Length), usage: Some(usage) }, &mut out);
    assert_eq!(finish, Some(Finish { reason: FinishReason::Length, usage }));
}

#[test]
fn tokens_leave_with_the_last_of_their_text() {
    let token =
        |text: &str| TokenInfo { text: text.to_owned(), bytes: None, id: None, logprob: Some(-1.0), top: Vec::new() };
    let mut guard = guard(&["xyz"], None);
    let mut texts = Vec::new();
    for text in ["a", "x", "y", "b", "x", "yz"] {
        let mut out = Guarded::default();
        guard.push(Piece { bytes: text.into(), token: Some(token(text)) }, &mut out);
        texts.push((out.text, out.tokens.into_iter().map(|token| token.text).collect::<String>()));
    }
    let expected = [("a", "a"), ("", ""), ("", ""), ("xyb", "xyb"), ("", ""), ("", "")];
    assert_eq!(texts, expected.map(|(text, tokens)| (text.to_owned(), tokens.to_owned())));
}

/// The rules, in the most simple form: the text up to the stop string that ends first.
fn expected(text: &str, stop: &[String]) -> String {
    let ends = stop.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at + stop.len(), at)));
    let first = ends.min_by_key(|(end, at)| (*end, *at));
    first.map_or(text, |(_, at)| &text[..at]).to_owned()
}

proptest! {
    #[test]
    fn splits_change_nothing(text in "[ab€]{0,40}", stop in prop::collection::vec("[ab€]{1,4}", 0..3), cuts in prop::collection::vec(0_usize..200, 0..12)) {
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let refs: Vec<&str> = stop.iter().map(String::as_str).collect();
        prop_assert_eq!(run(guard(&refs, None), &pieces).0, expected(&text, &stop));
    }
}
