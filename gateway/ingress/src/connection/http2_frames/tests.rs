//! Counts of HTTP/2 frames, in pieces of any size.

use super::*;
use proptest::prelude::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (u32::try_from(payload.len()).unwrap() << 8).to_be_bytes()[..3].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn begun() -> FrameCounter {
    let mut frames = FrameCounter::default();
    let now = Instant::now();
    assert_eq!(frames.count(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now), Verdict::Continue);
    assert_eq!(frames.count(&frame(SETTINGS, 0, 0, &[0; 6]), now), Verdict::Continue);
    frames
}

#[test]
fn trailers_are_bounded_and_heads_are_not() {
    let now = Instant::now();
    let mut frames = begun();
    for stream in (1..2000).step_by(2) {
        assert_eq!(frames.count(&frame(HEADERS, 4, stream, &[0x83; 100]), now), Verdict::Continue, "a head");
        assert_eq!(frames.count(&frame(0, 1, stream, &[7; 500]), now), Verdict::Continue, "its body");
    }
    assert_eq!(frames.count(&frame(HEADERS, 1, 1, &[0x90; 2000]), now), Verdict::Continue);
    assert_eq!(frames.count(&frame(CONTINUATION, 4, 1, &[0x90; 2096]), now), Verdict::Continue, "at the limit");
    assert_eq!(frames.count(&frame(0, 0, 1, &[7; 500]), now), Verdict::Continue, "no trailers");
    assert_eq!(frames.count(&frame(HEADERS, 5, 3, &[0x90]), now), Verdict::LargeTrailers);
}

#[test]
fn frames_with_an_answer_are_paced() {
    let now = Instant::now();
    let mut frames = begun();
    let ping = frame(PING, 0, 0, &[0; 8]);
    for _ in 0..2 * ANSWERED {
        assert_eq!(frames.count(&frame(PING, ACK, 0, &[0; 8]), now), Verdict::Continue, "an answer");
        assert_eq!(frames.count(&frame(8, 0, 0, &[0; 4]), now), Verdict::Continue, "a window update");
    }
    let verdicts: Vec<_> = (1..ANSWERED).map(|_| frames.count(&ping, now)).collect();
    assert!(verdicts.iter().rev().skip(1).all(|verdict| *verdict == Verdict::Continue));
    let Verdict::Pause(until) = frames.count(&ping, now) else { panic!("not paused") };
    assert_eq!(frames.count(&ping, until), Verdict::Continue, "a second later");
}

proptest! {
    #[test]
    fn pieces_of_any_size_are_counted_alike(cuts in prop::collection::vec(1_usize..50, 1..200), bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let now = Instant::now();
        let (mut whole, mut cut) = (begun(), begun());
        whole.count(&bytes, now);
        let mut rest = &bytes[..];
        for size in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(rest.len().min(*size));
            cut.count(piece, now);
            rest = after;
        }
        prop_assert_eq!((whole.left, whole.trailers, whole.newest), (cut.left, cut.trailers, cut.newest));
    }
}
