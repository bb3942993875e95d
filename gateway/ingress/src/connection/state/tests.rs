//! State of a connection after reads, writes and requests.

use super::*;

#[test]
fn http2_is_detected_by_its_first_bytes() {
    for (pieces, is_http2) in [
        (vec!["PRI * HTTP/2.0\r\n"], true),
        (vec!["P", "RI", " * HTTP/2.0"], true),
        (vec!["POST / HTTP/1.1"], false),
        (vec!["P", "OST / PRI"], false),
        (vec!["PR", "OPFIND", "PRI"], false),
        (vec!["P", "R"], false),
    ] {
        let state = ConnectionState::default();
        pieces.iter().for_each(|piece| state.on_read(piece.as_bytes()));
        assert_eq!(state.io.is_http2(), is_http2, "{pieces:?}");
    }
}

#[test]
fn a_connection_lingers_until_hyper_waits_for_the_next_request() {
    let state = Arc::new(ConnectionState::default());
    let open = state.begin_request();
    state.end.set_lingers(true);
    state.io.on_no_input();
    state.end_turn();
    assert!(state.end.lingers(), "the response is to come, and may be early");
    drop(open);
    state.io.on_write(true);
    state.io.on_no_input();
    state.io.on_close();
    state.end_turn();
    assert!(state.end.lingers(), "hyper tried to read the rest of the body, and closes without it");
    state.io.on_no_input();
    state.end_turn();
    assert!(!state.end.lingers(), "it waits for the next request");
}

#[test]
fn a_connection_is_idle_between_its_requests() {
    let state = Arc::new(ConnectionState::default());
    assert!(!state.is_idle(), "hyper has not tried to read yet");
    state.io.on_no_input();
    assert!(state.is_idle(), "nothing came yet");
    state.on_read(b"POST ");
    state.io.on_no_input();
    assert!(!state.is_idle(), "hyper has half a head");
    let open = state.begin_request();
    state.io.on_write(true);
    state.io.on_no_input();
    assert!(!state.is_idle(), "the response is being written");
    drop(open);
    assert!(state.is_idle());
    state.io.on_write(true);
    assert!(!state.is_idle(), "hyper closes it, if it does not ask for another request");
    state.io.on_no_input();
    state.io.on_write(false);
    assert!(!state.is_idle(), "the end of the response is not written yet");
    state.io.on_write(true);
    state.io.on_no_input();
    assert!(state.is_idle());
    state.on_read(b"P");
    assert!(!state.is_idle(), "the next one has begun");
    state.handoff.begin(1);
    state.io.on_write(true);
    state.io.on_no_input();
    assert!(!state.is_idle(), "a handoff is active");
}
