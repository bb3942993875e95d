//! What a listener asks of each request before anything is done for it: whom it is for, from where it comes, and how large
//! its head is.
//!
//! Asked by [`super::conversation`]. What always holds: a request that is refused here costs no more than its refusal; over
//! HTTP/2, where a head takes a hundred times as much memory as it had bytes on the wire, heads beyond a connection's first
//! [`FREE`] bytes are lent by the node's [`BodyBudget`](omni_body::BodyBudget).

mod host;

pub use self::host::Names;

use crate::metrics::HttpMetrics;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response, Version};
use omni_body::{BodyPermit, BudgetShare};
use omni_request_error::Failure;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most headers of a request.
pub(crate) const HEADERS: usize = 100;
/// What a header takes beside its bytes: its place in a map, and in a table of places.
const EACH: u64 = 128;
/// Heads of one connection that the budget does not count: as much as HTTP/1.1 has for the only one.
const FREE: u64 = 64 * 1024;
/// Most of the heads of one connection together.
const MOST: u64 = 1024 * 1024;
/// The budget lends in steps.
const STEP: u64 = 64 * 1024;

/// How a refusal is said, in the words of the listener.
pub type Refuse = fn(&HeaderMap, &Failure) -> Response<Bytes>;

/// What one listener asks.
#[derive(Debug, Clone)]
pub struct Door {
    /// Names that it answers to.
    pub names: Names,
    /// Memory for heads.
    pub room: Arc<BudgetShare>,
    /// Counts refusals.
    pub metrics: HttpMetrics,
    /// Says them.
    pub refuse: Refuse,
}

/// Heads of the requests that are open on one HTTP/2 connection.
#[derive(Debug, Default)]
pub(crate) struct Heads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// What of it is beyond [`FREE`], in steps.
    held: Option<BodyPermit>,
}

/// The room of one head, for as long as it lives.
#[derive(Debug)]
struct Head {
    bytes: u64,
    of: Arc<Heads>,
}

impl Door {
    /// Whether a request may come in. Its head has room until its extensions are dropped.
    ///
    /// # Errors
    /// What it has to be told instead.
    pub(crate) fn enter(
        &self,
        request: &mut Request<Incoming>,
        heads: &Arc<Heads>,
    ) -> Result<(), Box<Response<Bytes>>> {
        let entered = self.names.check(request.method(), request.uri(), request.version(), request.headers());
        let entered = entered.and_then(|()| self.room(request, heads));
        entered.map_err(|failure| {
            self.metrics.refused(&failure);
            Box::new((self.refuse)(request.headers(), &failure))
        })
    }

    fn room(&self, request: &mut Request<Incoming>, heads: &Arc<Heads>) -> Result<(), Failure> {
        if request.version() < Version::HTTP_2 {
            return Ok(()); // hyper has bounded it already
        }
        if request.headers().len() > HEADERS {
            return Err(Failure::HeadTooLarge);
        }
        let uri = request.uri();
        let target = uri.path_and_query().map_or(0, |path| path.as_str().len())
            + uri.authority().map_or(0, |authority| authority.as_str().len());
        let fields = request.headers().iter().map(|(name, value)| EACH + (name.as_str().len() + value.len()) as u64);
        let head = heads.grow(target as u64 + fields.sum::<u64>(), &self.room)?;
        request.extensions_mut().insert(Arc::new(head));
        Ok(())
    }
}

impl Heads {
    fn grow(self: &Arc<Self>, bytes: u64, room: &Arc<BudgetShare>) -> Result<Head, Failure> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = state.bytes + bytes;
        if all > MOST {
            return Err(Failure::HeadTooLarge);
        }
        let held = state.held.as_ref().map_or(0, BodyPermit::bytes);
        if let Some(missing) = all.checked_sub(FREE + held).filter(|missing| *missing > 0) {
            let held = state.held.get_or_insert_with(|| room.body());
            if !held.grow(missing.next_multiple_of(STEP), Instant::now()) {
                return Err(Failure::NodeBusy);
            }
        }
        state.bytes = all;
        Ok(Head { bytes, of: Arc::clone(self) })
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        let mut state = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes -= self.bytes;
        if state.bytes <= FREE {
            state.held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics};

    #[test]
    fn large_heads_are_lent_by_the_budget_until_they_are_gone() {
        let budget = BodyBudget::new(2 * 256 * 1024, 1, BodyMetrics::default());
        let room = budget.share();
        let (heads, others) = (Arc::<Heads>::default(), Arc::<Heads>::default());
        let first = heads.grow(FREE, &room).unwrap();
        assert_eq!(budget.reserved(), 0, "few heads cost nobody anything");
        let second = heads.grow(1, &room).unwrap();
        let third = heads.grow(STEP - 1, &room).unwrap();
        assert_eq!(budget.reserved(), STEP);
        assert_eq!(others.grow(FREE + 3 * STEP + 1, &room).unwrap_err(), Failure::NodeBusy);
        let other = others.grow(FREE + 3 * STEP, &room).unwrap();
        assert_eq!(budget.reserved(), 4 * STEP);
        drop((first, second, third));
        assert_eq!(budget.reserved(), 3 * STEP);
        drop(other);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn heads_of_one_connection_are_bounded_whatever_the_node_has() {
        let room = BodyBudget::new(u64::MAX, 1, BodyMetrics::default()).share();
        let heads = Arc::<Heads>::default();
        let most = heads.grow(MOST, &room).unwrap();
        assert_eq!(heads.grow(1, &room).unwrap_err(), Failure::HeadTooLarge);
        drop(most);
        heads.grow(1, &room).unwrap();
    }
}
