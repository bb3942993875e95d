//! Frames of HTTP/2 as a client may send them, in pieces of any size.

use super::*;
use proptest::prelude::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (u32::try_from(payload.len()).unwrap() << 8).to_be_bytes()[..3].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn begun() -> Frames {
    let mut frames = Frames::default();
    let now = Instant::now();
    assert_eq!(frames.take(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now), Verdict::Go);
    assert_eq!(frames.take(&frame(SETTINGS, 0, 0, &[0; 6]), now), Verdict::Go);
    frames
}

#[test]
fn trailers_are_told_from_heads() {
    let now = Instant::now();
    let mut frames = begun();
    for stream in (1..2000).step_by(2) {
        assert_eq!(frames.take(&frame(HEADERS, 4, stream, &[0x83; 100]), now), Verdict::Go, "a head");
        assert_eq!(frames.take(&frame(0, 1, stream, &[7; 500]), now), Verdict::Go, "its body");
    }
    assert_eq!(frames.take(&frame(HEADERS, 1, 1, &[0x90; 2000]), now), Verdict::Go);
    assert_eq!(frames.take(&frame(CONTINUATION, 4, 1, &[0x90; 2096]), now), Verdict::Go, "just as much as may be");
    assert_eq!(frames.take(&frame(0, 0, 1, &[7; 500]), now), Verdict::Go, "no trailers");
    assert_eq!(frames.take(&frame(HEADERS, 5, 3, &[0x90]), now), Verdict::End);
}

#[test]
fn what_has_to_be_answered_is_read_at_its_rate() {
    let now = Instant::now();
    let mut frames = begun();
    let ping = frame(PING, 0, 0, &[0; 8]);
    for _ in 0..2 * ANSWERED {
        assert_eq!(frames.take(&frame(PING, ACK, 0, &[0; 8]), now), Verdict::Go, "an answer");
        assert_eq!(frames.take(&frame(8, 0, 0, &[0; 4]), now), Verdict::Go, "room for more");
    }
    let verdicts: Vec<_> = (1..ANSWERED).map(|_| frames.take(&ping, now)).collect();
    assert!(verdicts.iter().rev().skip(1).all(|verdict| *verdict == Verdict::Go));
    let Verdict::Wait(until) = frames.take(&ping, now) else { panic!("it is read on") };
    assert_eq!(frames.take(&ping, until), Verdict::Go, "a second later");
}

proptest! {
    #[test]
    fn pieces_of_any_size_are_the_same(cuts in prop::collection::vec(1_usize..50, 1..200), bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let now = Instant::now();
        let (mut whole, mut cut) = (begun(), begun());
        whole.take(&bytes, now);
        let mut rest = &bytes[..];
        for size in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(rest.len().min(*size));
            cut.take(piece, now);
            rest = after;
        }
        prop_assert_eq!((whole.left, whole.trailers, whole.newest), (cut.left, cut.trailers, cut.newest));
    }
}
