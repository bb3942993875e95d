//! Lines, cuts, the ring's bound and the rate.

use super::*;
use proptest::prelude::*;

fn at(ms: u64) -> Moment {
    Moment { monotonic: Duration::from_millis(ms), unix_ms: 1_000_000 + ms }
}

fn texts(journal: &Journal) -> Vec<String> {
    journal.ring.iter().map(|line| line.text.clone()).collect()
}

#[test]
fn lines_come_whole_from_any_pieces() {
    let mut journal = Journal::new(100);
    for piece in ["one\ntw", "o\r\n", "", "\nthr", "ee"] {
        journal.write(LogStream::Stdout, piece.as_bytes(), at(0));
    }
    journal.write(LogStream::Stderr, b"other\n\xff\n", at(0));
    journal.finish(at(0));
    assert_eq!(texts(&journal), ["one", "two", "", "other", "\u{fffd}", "three"]);
    let seqs: Vec<u64> = journal.ring.iter().map(|line| line.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_progress_bar_is_shown_as_it_moves_and_as_it_was_last() {
    let mut journal = Journal::new(100);
    for percent in 0..30 {
        journal.write(LogStream::Stderr, format!("\r{percent}%").as_bytes(), at(percent * 100));
    }
    let shown = texts(&journal);
    assert!((2..=4).contains(&shown.len()), "once a second: {shown:?}");
    let due = journal.deadline().expect("the last state is shown though nothing follows");
    journal.tick(Moment { monotonic: due, unix_ms: 0 });
    assert_eq!(texts(&journal).last().unwrap(), "29%");
    assert_eq!(journal.deadline(), None);
    journal.write(LogStream::Stderr, b"\r100%\nafter\n", at(5000));
    assert_eq!(texts(&journal).split_off(shown.len() + 1), ["100%", "after"]);
    // The last line appears once, shown before its end or not.
    journal.write(LogStream::Stdout, b"\ra", at(9000));
    journal.tick(at(9000));
    journal.write(LogStream::Stdout, b"\n\nb\r\n\r\n", at(9001));
    assert_eq!(texts(&journal).split_off(shown.len() + 3), ["a", "", "b"]);
}

#[test]
fn a_long_line_is_cut_between_characters() {
    let mut journal = Journal::new(100);
    let line = format!("{}é{}", "x".repeat(LINE_MAX - 1), "y".repeat(10));
    journal.write(LogStream::Stdout, line.as_bytes(), at(0));
    journal.write(LogStream::Stdout, b"\n", at(0));
    assert_eq!(texts(&journal), ["x".repeat(LINE_MAX - 1), format!("é{}", "y".repeat(10))]);
    let exact = format!("{}\n", "z".repeat(LINE_MAX));
    journal.write(LogStream::Stdout, exact.as_bytes(), at(0));
    assert_eq!(journal.ring.len(), 3, "a line of exactly the bound is one line");
}

#[test]
fn a_flood_is_dropped_counted_and_reported() {
    let mut journal = Journal::new(10);
    journal.write(LogStream::Stdout, &b"line\n".repeat(1000), at(0));
    assert_eq!(journal.ring.len(), 10);
    assert_eq!(journal.deadline(), Some(DROP));
    journal.write(LogStream::Stderr, &b"line\n".repeat(5), at(99));
    assert_eq!(journal.ring.len(), 10);
    journal.tick(at(100));
    assert_eq!(texts(&journal).last().unwrap(), "995 lines dropped: more than 10 lines a second");
    assert_eq!(journal.deadline(), None);
    journal.write(LogStream::Stdout, &b"line\n".repeat(15), at(1100));
    journal.write(LogStream::Stdout, b"later\n", at(2200));
    let last: Vec<String> = texts(&journal).split_off(21);
    assert_eq!(last, ["5 lines dropped: more than 10 lines a second", "later"]);
}

#[test]
fn a_line_is_dropped_whole_when_a_part_of_it_is() {
    let mut journal = Journal::new(10);
    journal.write(LogStream::Stdout, &b"line\n".repeat(11), at(0));
    journal.write(LogStream::Stdout, b"its beginning", at(50));
    journal.write(LogStream::Stdout, b" and its end\nwhole\nhalf", at(200));
    journal.finish(at(200));
    assert_eq!(texts(&journal).split_off(10), ["2 lines dropped: more than 10 lines a second", "whole", "half"]);
    let mut journal = Journal::new(10);
    journal.write(LogStream::Stdout, &b"line\n".repeat(11), at(0));
    journal.write(LogStream::Stdout, b"never ended", at(50));
    journal.finish(at(60));
    assert_eq!(texts(&journal).split_off(10), ["2 lines dropped: more than 10 lines a second"]);
}

#[test]
fn a_reader_goes_on_after_what_it_has_seen() {
    let mut journal = Journal::new(u32::MAX);
    assert!(journal.after(0).is_none());
    for number in 1..=3000 {
        journal.write(LogStream::Stdout, format!("{number}\n").as_bytes(), at(number));
    }
    let oldest = journal.after(0).unwrap().seq;
    assert!(oldest > 1, "the ring has let go of the oldest lines");
    assert_eq!(journal.after(5).unwrap().seq, oldest);
    assert_eq!(journal.after(2998).unwrap().text, "2999");
    assert!(journal.after(3000).is_none());
    assert!(journal.after(u64::MAX).is_none());
}

/// Any byte but a carriage return.
fn no_return() -> impl Strategy<Value = u8> {
    any::<u8>().prop_map(|byte| if byte == b'\r' { b'r' } else { byte })
}

proptest! {
    #[test]
    fn the_ring_is_bounded_and_loses_nothing_under_the_rate(
        pieces in proptest::collection::vec(proptest::collection::vec(no_return(), 0..3000), 0..60),
    ) {
        let mut journal = Journal::new(u32::MAX);
        for piece in &pieces {
            journal.write(LogStream::Stdout, piece, at(0));
            let bytes: usize = journal.ring.iter().map(|line| line.text.len() + LINE_COST).sum();
            prop_assert_eq!(bytes, journal.bytes);
            prop_assert!(bytes <= RING_BYTES);
            prop_assert!(journal.stdout.bytes.len() <= LINE_MAX);
        }
        journal.finish(at(0));
        let whole = pieces.concat();
        let longest = whole.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
        if longest <= LINE_MAX {
            let mut lines: Vec<String> = whole.split(|byte| *byte == b'\n')
                .map(|line| String::from_utf8_lossy(line).into_owned()).collect();
            if whole.is_empty() || whole.ends_with(b"\n") {
                lines.pop(); // nothing after the last newline
            }
            let kept = texts(&journal);
            prop_assert_eq!(&lines[lines.len() - kept.len()..], &kept[..]);
        }
    }
}
