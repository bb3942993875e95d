//! Load on a node while a test does something to it.

use crate::{PATIENCE, SetOnDrop, wait_for};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Runs clients that each `ask` one time after the other until `during` is over, or has failed. `during` is given a
/// function that waits until some more were answered. Returns all requests, by client.
///
/// # Panics
///
/// When a client or `during` does, or nothing is answered.
pub fn under_load<T: Send>(
    clients: usize,
    ask: impl Fn(usize) -> T + Sync,
    during: impl FnOnce(&dyn Fn()),
) -> Vec<Vec<T>> {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let (stop, done, ask) = (&stop, &done, &ask);
        let client = |number| {
            let mut asked = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                asked.push(ask(number));
                done.fetch_add(1, Ordering::Relaxed);
            }
            asked
        };
        let clients: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        during(&|| {
            let before = done.load(Ordering::Relaxed);
            wait_for("load", PATIENCE, || (done.load(Ordering::Relaxed) > before + 20).then_some(()));
        });
        drop(stopping);
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    })
}
