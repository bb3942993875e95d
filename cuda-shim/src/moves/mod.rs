//! Moves managed memory between the device and the host, in bulk, when the control thread is told to.
//!
//! One thread calls this, so one move runs at a time. A move claims its ranges (nobody frees them meanwhile), enters
//! each of their contexts, begins all prefetches on a stream of its own and waits once, at the end. An error of one
//! range stops nothing: it is reported. What did not leave counts as on the device, and so does what did not come back:
//! the model runs all the same, and what it touches comes by faults that nobody sees.
//!
//! No advice is given or changed here. The hooks set the device as the preferred location of what they convert, and a
//! prefetch moves pages away from there all the same (documented at `cuMemPrefetchAsync`). With the host as preferred
//! location of evicted memory a stray touch of the device would read over the bus instead of fetching the page back;
//! but if the order to restore never comes (worker lost, or a move that failed) the model would go on like that for
//! good, where now each page comes back at its first touch. See `docs/decisions/gpu-moves.md`.

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

/// What came of a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub bytes: u64,
    /// From the first call to the last one's end.
    pub nanos: u64,
    /// The first one other than success, if there was one.
    pub error: CUresult,
}

/// Moves memory to the host until at least `bytes` are moved, or all of it is: at most 2 MiB more than asked for.
pub(crate) fn evict(bytes: u64) -> Moved {
    carry_out(Way::Out, |range| range.resident > 0, |ranges| plan::evict(ranges, bytes))
}

/// Moves everything back.
pub(crate) fn restore() -> Moved {
    carry_out(Way::In, |range| range.resident < range.bytes, plan::restore)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

static MOVES: PerProcess<Mutex<()>> = PerProcess::new();

/// No move runs while this lives: for who destroys a context, in which a move may be.
pub(crate) fn none_runs() -> MutexGuard<'static, ()> {
    MOVES.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn carry_out(way: Way, wanted: impl Fn(&Range) -> bool, plan: impl FnOnce(&[Range]) -> Vec<Piece>) -> Moved {
    let Some(_moving) = Moving::begin() else { return Moved { error: DEINITIALIZED, ..Moved::default() } };
    let _only_one = none_runs();
    let mut claims = ranges::claim(wanted);
    let mut pieces = plan(&claims.ranges);
    // What outlived its pool has no context: any of the process will do.
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
    // Its memory went with the context, by a way that no hook saw.
    for range in gone.into_iter().flat_map(ranges::remove_context) {
        account::forget(&range);
    }
    moved
}

impl Moved {
    /// The first error is the one that is told.
    fn note(&mut self, error: CUresult) {
        if self.error == SUCCESS {
            self.error = error;
        }
    }
}

/// In the order in which the pieces need them; nearly always there is one.
fn contexts(pieces: &[Piece]) -> Vec<u64> {
    let mut contexts = Vec::new();
    for piece in pieces {
        if !contexts.contains(&piece.context) {
            contexts.push(piece.context);
        }
    }
    contexts
}

/// Moves pieces of one context. Which of them were moved, and the first error among the others.
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

/// Everything with one call where the driver has it, else one call for each stretch; what a stretch is refused for may
/// be the matter of one piece, so its pieces are tried one by one.
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
