//! Moves of managed memory between the device and the host, in bulk, on the worker's commands.
//!
//! Only the control thread moves, so one move runs at a time. A move claims its ranges (a free of one waits), enters
//! each of their contexts, starts all prefetches on a stream of its own and waits once, at the end. An error of one
//! range is reported and stops nothing. Memory that did not leave counts as on the device, and so does memory that did
//! not come back: the model runs all the same, and its pages come by faults that are not observed.
//!
//! No advice is given or changed here. The hooks set the device as the preferred location of converted memory, and a
//! prefetch moves pages away from there all the same (documented at `cuMemPrefetchAsync`). With the host as preferred
//! location of evicted memory a stray access of the device would read over the bus instead of fetching the page back;
//! but if the command to restore never comes (worker lost, or a failed move) the model would go on like that for good,
//! where now each page comes back at its first access. See `docs/decisions/gpu-moves.md`.

mod ending;
mod plan;
mod prefetch;

use crate::abi::{CONTEXT_IS_GONE, CUresult, SUCCESS};
use crate::account;
use crate::driver::outside_captures;
use crate::process::PerProcess;
use crate::ranges::{self, Range};
use ending::Moving;
use plan::Piece;
use prefetch::{Current, Place, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// `CUDA_ERROR_DEINITIALIZED`.
const DEINITIALIZED: CUresult = 4;

/// Result of a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub bytes: u64,
    /// Nanoseconds from the first call to the last one's end.
    pub nanos: u64,
    /// First `CUresult` other than success, if there was one.
    pub error: CUresult,
}

/// Moves memory to the host until at least `bytes` are moved, or all of it is: at most 2 MiB more than requested.
pub(crate) fn evict(bytes: u64) -> Moved {
    carry_out(Way::Out, |range| range.resident > 0, |ranges| plan::evict(ranges, bytes))
}

/// Moves everything back to the device.
pub(crate) fn restore() -> Moved {
    carry_out(Way::In, |range| range.resident < range.bytes, plan::restore)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

static MOVES: PerProcess<Mutex<()>> = PerProcess::new();

/// Keeps moves from running while the guard lives: a context is about to be destroyed.
pub(crate) fn none_runs() -> MutexGuard<'static, ()> {
    MOVES.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn carry_out(way: Way, wanted: impl Fn(&Range) -> bool, plan: impl FnOnce(&[Range]) -> Vec<Piece>) -> Moved {
    let Some(_moving) = Moving::begin() else { return Moved { error: DEINITIALIZED, ..Moved::default() } };
    let _only_one = none_runs();
    let mut claims = ranges::claim(wanted);
    let mut pieces = plan(&claims.ranges);
    // Ranges that outlived their pool have no context: any of the process will do.
    let any = claims.ranges.iter().map(|range| range.context).find(|context| *context != 0).unwrap_or(0);
    pieces.iter_mut().filter(|piece| piece.context == 0).for_each(|piece| piece.context = any);
    claims.keep(pieces.iter().map(|piece| piece.range));
    let (mut moved, mut came, mut gone) = (Moved::default(), 0, Vec::new());
    let begin = Instant::now();
    for context in contexts(&pieces) {
        let pieces: Vec<Piece> = pieces.iter().filter(|piece| piece.context == context).copied().collect();
        let (done, error) = outside_captures(|| in_context(context, way, &pieces)).unwrap_or_else(|error| {
            gone.extend((context != 0 && CONTEXT_IS_GONE.contains(&error)).then_some(context));
            (Vec::new(), error)
        });
        moved.note(error);
        moved.bytes += done.iter().map(|piece| piece.bytes).sum::<u64>();
        let changed = match way {
            Way::Out => done,
            Way::In => pieces,
        };
        for piece in changed {
            claims.set_resident(piece.range, piece.resident);
            came += piece.bytes;
        }
    }
    moved.nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match way {
        Way::Out => account::left(moved.bytes),
        Way::In => account::came(came),
    }
    drop(claims);
    // Memory that went with its context, unseen by a hook.
    for range in gone.into_iter().flat_map(ranges::remove_context) {
        account::forget(&range);
    }
    moved
}

impl Moved {
    /// Keeps the first error.
    fn note(&mut self, error: CUresult) {
        if self.error == SUCCESS {
            self.error = error;
        }
    }
}

/// Contexts in the order in which the pieces need them; nearly always there is one.
fn contexts(pieces: &[Piece]) -> Vec<u64> {
    let mut contexts = Vec::new();
    for piece in pieces {
        if !contexts.contains(&piece.context) {
            contexts.push(piece.context);
        }
    }
    contexts
}

/// Moves pieces of one context. Returns those that were moved, and the first error among the others.
fn in_context(context: u64, way: Way, pieces: &[Piece]) -> Result<(Vec<Piece>, CUresult), CUresult> {
    let current = Current::new(context)?;
    let to = match way {
        Way::Out => Place::Host,
        Way::In => Place::Device(current.device()?),
    };
    let stream = current.stream()?;
    let begun = begin(&stream, to, pieces);
    stream.synchronize()?;
    Ok(begun)
}

/// Starts all prefetches, with one call where the driver has it, else with one call per stretch; a stretch may be
/// refused because of one piece, so its pieces are then tried one by one.
fn begin(stream: &Stream<'_>, to: Place, pieces: &[Piece]) -> (Vec<Piece>, CUresult) {
    let stretches = plan::stretches(pieces);
    let mut addresses: Vec<u64> = stretches.iter().map(|stretch| stretch.address).collect();
    let mut sizes: Vec<usize> = stretches.iter().map(|s| usize::try_from(s.bytes).unwrap_or(usize::MAX)).collect();
    if stretches.len() > 1 && stream.prefetch_all(&mut addresses, &mut sizes, to).is_ok() {
        return (pieces.to_vec(), SUCCESS);
    }
    let (mut done, mut moved, mut rest) = (Vec::with_capacity(pieces.len()), Moved::default(), pieces);
    for stretch in stretches {
        let (these, later) = rest.split_at(stretch.pieces);
        rest = later;
        if stretch.pieces > 1 && stream.prefetch(stretch.address, stretch.bytes, to).is_ok() {
            done.extend_from_slice(these);
            continue;
        }
        for piece in these {
            match stream.prefetch(piece.address, piece.bytes, to) {
                Ok(()) => done.push(*piece),
                Err(error) => moved.note(error),
            }
        }
    }
    (done, moved.error)
}
