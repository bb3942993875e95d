//! What is known of a connection, by what happens on it.

use super::*;

#[test]
fn the_two_versions_are_told_apart_by_their_first_bytes() {
    for (pieces, is_http2) in [
        (vec!["PRI * HTTP/2.0\r\n"], true),
        (vec!["P", "RI", " * HTTP/2.0"], true),
        (vec!["POST / HTTP/1.1"], false),
        (vec!["P", "OST / PRI"], false),
        (vec!["PR", "OPFIND", "PRI"], false),
        (vec!["P", "R"], false),
    ] {
        let known = Known::default();
        pieces.iter().for_each(|piece| known.read(piece.as_bytes()));
        assert_eq!(known.is_http2(), is_http2, "{pieces:?}");
    }
}

#[test]
fn only_what_may_be_left_is_waited_for() {
    let known = Arc::new(Known::default());
    let open = known.begin();
    known.linger(true);
    known.found_nothing();
    known.settle();
    assert!(known.lingers.load(Ordering::Relaxed), "the answer is to come, and may be early");
    drop(open);
    known.wrote(true);
    known.found_nothing();
    known.closes();
    known.settle();
    assert!(known.lingers.load(Ordering::Relaxed), "hyper looked for the rest of the body, and closes without it");
    known.found_nothing();
    known.settle();
    assert!(!known.lingers.load(Ordering::Relaxed), "it waits for the next request");
}

#[test]
fn a_connection_is_idle_between_its_requests() {
    let known = Arc::new(Known::default());
    assert!(!known.is_idle(), "hyper has not asked yet");
    known.found_nothing();
    assert!(known.is_idle(), "nothing came yet");
    known.read(b"POST ");
    known.found_nothing();
    assert!(!known.is_idle(), "half a head is hyper's already");
    let open = known.begin();
    known.wrote(true);
    known.found_nothing();
    assert!(!known.is_idle(), "its answer is being written");
    drop(open);
    assert!(known.is_idle());
    known.wrote(true);
    assert!(!known.is_idle(), "hyper closes it, if it does not ask for another request");
    known.found_nothing();
    known.wrote(false);
    assert!(!known.is_idle(), "the end of the answer is not written yet");
    known.wrote(true);
    known.found_nothing();
    assert!(known.is_idle());
    known.read(b"P");
    assert!(!known.is_idle(), "the next one has begun");
    known.hold.hold(1);
    known.wrote(true);
    known.found_nothing();
    assert!(!known.is_idle(), "it is not kept");
}
