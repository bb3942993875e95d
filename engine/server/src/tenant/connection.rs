//! Data connection of one life of the scheduler, and its cancellations.

use super::answer::{Incoming, answer};
use super::frames::{frame, json, refusal};
use super::registry::Registry;
use super::request::{Refused, SharedRef};
use crate::metrics::{self, Metric};
use omni_engine_protocol::frame::{HEADER, Header, Kind, flags};
use omni_engine_protocol::metrics::EngineMetric;
use omni_engine_protocol::reader::{Frame, FrameReader};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::yield_now;
use tokio::time::interval;

/// Frames that wait to be written: each has its credit, or is a request's last one.
const FRAMES: usize = 256;
/// Writes that wait for the socket.
const WRITES: usize = 2;
/// Time between two reports of metrics.
const METRICS: Duration = Duration::from_secs(5);

/// Serves a connection until its other side closes it.
pub(super) fn serve(shared: &SharedRef, runtime: &Handle, data: OwnedFd, cancel: OwnedFd) {
    let data = UnixStream::from(data);
    let Ok(writer) = data.try_clone() else { return };
    let Ok(closing) = data.try_clone() else { return };
    let registry = Arc::new(Registry::default());
    let (frames, queued) = channel(FRAMES);
    let (gathered, written) = channel(WRITES);
    let cancels = Arc::clone(&registry);
    let threads = [
        thread::Builder::new().name("write".to_owned()).spawn(move || write(writer, written)),
        thread::Builder::new().name("cancel".to_owned()).spawn(move || read_cancels(cancel.into(), &cancels)),
    ];
    runtime.spawn(gather(Arc::clone(shared), queued, gathered));
    let reports = runtime.spawn(report(Arc::clone(shared), frames.clone()));
    if threads.iter().all(Result::is_ok) {
        read(FrameReader::new(data), shared, runtime, &registry, &frames);
    }
    reports.abort();
    registry.cancel_all();
    drop(frames);
    // The writer may wait for a peer that reads no more.
    let _ = closing.shutdown(Shutdown::Both);
    for thread in threads.into_iter().flatten() {
        let _ = thread.join();
    }
}

fn read(
    mut reader: FrameReader<UnixStream>,
    shared: &SharedRef,
    runtime: &Handle,
    registry: &Arc<Registry>,
    frames: &Sender<Vec<u8>>,
) {
    while let Ok(Some(Frame { header, payload, body })) = reader.read() {
        let Header { id, kind, flags, .. } = header;
        match kind {
            Kind::Request => {
                let Some(signals) = registry.add(id, shared.concurrency) else {
                    let refused = Refused { status: 503, ..Refused::invalid(None, "as many requests run as may") };
                    let _ = frames.blocking_send(refusal(id, &refused));
                    continue;
                };
                let is_streamed = flags & flags::BODY_STREAM != 0;
                let incoming = Incoming { id, payload, body, is_streamed };
                let (shared, registry, frames) = (Arc::clone(shared), Arc::clone(registry), frames.clone());
                runtime.spawn(async move {
                    answer(shared, incoming, signals, frames).await;
                    registry.remove(id);
                });
            }
            Kind::Credit => {
                if let Some(bytes) = payload.first_chunk::<4>() {
                    registry.credit(id, u32::from_le_bytes(*bytes));
                }
            }
            Kind::Check => {
                let _ = frames.blocking_send(frame(Kind::Health, 0, 0, id, health(shared).as_bytes()));
            }
            // The scheduler sends nothing else to an engine that does not take batches.
            _ => return,
        }
    }
}

/// Nothing, or what is wrong: the engine is well while its steps come to an end.
fn health(shared: &SharedRef) -> String {
    match shared.engine.status().hung {
        Some(stalled) => format!("a step has not ended for {} s", stalled.as_secs()),
        None => String::new(),
    }
}

/// Gathers the frames of a step for one write, which wakes the scheduler once for all of its streams.
async fn gather(shared: SharedRef, mut queued: Receiver<Vec<u8>>, gathered: Sender<Vec<u8>>) {
    let mut frames = Vec::new();
    while queued.recv_many(&mut frames, FRAMES).await > 0 {
        shared.engine.wait_until_sent();
        // The tasks of other requests that the step has woken run before this one goes on.
        yield_now().await;
        while let Ok(frame) = queued.try_recv() {
            frames.push(frame);
        }
        if gathered.send(frames.concat()).await.is_err() {
            return;
        }
        frames.clear();
    }
}

fn write(mut socket: UnixStream, mut written: Receiver<Vec<u8>>) {
    while let Some(frames) = written.blocking_recv() {
        if socket.write_all(&frames).is_err() {
            return;
        }
    }
}

/// Reads the cancel socket: a header in each packet.
fn read_cancels(mut socket: UnixStream, registry: &Registry) {
    let mut bytes = [0; HEADER];
    while let Ok(HEADER) = socket.read(&mut bytes) {
        if let Ok(Header { kind: Kind::Cancel, code, id, .. }) = Header::decode(&bytes) {
            registry.cancel(id, code);
        }
    }
}

/// Reports the engine's metrics every few seconds.
async fn report(shared: SharedRef, frames: Sender<Vec<u8>>) {
    let mut ticks = interval(METRICS);
    loop {
        ticks.tick().await;
        if frames.send(json(Kind::Metrics, flags::JSON, 0, 0, &metrics(&shared))).await.is_err() {
            return;
        }
    }
}

fn metrics(shared: &SharedRef) -> Vec<EngineMetric> {
    let of =
        |Metric { name, kind, value, help: _ }| EngineMetric { name: name.to_owned(), kind, labels: Vec::new(), value };
    metrics::metrics(&shared.engine.status()).into_iter().map(of).collect()
}
