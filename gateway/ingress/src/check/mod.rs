//! Check of each request's head before the handler is called: its host, its origin, and its size.
//!
//! Invariants: a request that is refused here costs no more than its refusal. Over HTTP/2, where a head takes a hundred times as much
//! memory as it had bytes on the wire, heads beyond the first [`UNCOUNTED`] bytes of a connection are reserved in the
//! [`BodyBudget`](omni_body::BodyBudget).

mod host;

pub use self::host::HostNames;

use crate::metrics::HttpMetrics;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response, Uri, Version};
use omni_body::{BodyPermit, BudgetShare};
use omni_request_error::Failure;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most headers of a request.
pub(crate) const HEADERS: usize = 100;
/// Memory of a header beside its bytes: its entries in the map and in the index.
const HEADER_OVERHEAD: u64 = 128;
/// Bytes of the heads of one connection that the budget does not count: as many as HTTP/1.1 allows for its only head.
const UNCOUNTED: u64 = 64 * 1024;
/// Most bytes of all open heads of one connection.
const LIMIT: u64 = 1024 * 1024;
/// Bytes that are reserved at once.
const STEP: u64 = 64 * 1024;

/// Renders a refusal as a response of the listener's API.
pub type RenderRefusal = fn(&Uri, &HeaderMap, &Failure) -> Response<Bytes>;

/// Check of the requests of one listener.
#[derive(Debug, Clone)]
pub struct RequestCheck {
    /// Host names of the listener.
    pub names: HostNames,
    /// Memory for heads.
    pub heads_budget: Arc<BudgetShare>,
    /// Counters of refusals and closed connections.
    pub metrics: HttpMetrics,
    /// Rendering of refusals.
    pub render: RenderRefusal,
}

/// Heads of the open requests of one HTTP/2 connection.
#[derive(Debug, Default)]
pub(crate) struct OpenHeads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Memory for the part beyond [`UNCOUNTED`].
    permit: Option<BodyPermit>,
}

/// Memory of one head, until it is dropped.
#[derive(Debug)]
struct HeadPermit {
    bytes: u64,
    heads: Arc<OpenHeads>,
}

impl RequestCheck {
    /// Checks a request. The memory of its head stays reserved until its extensions are dropped.
    ///
    /// # Errors
    /// The response to a refused request.
    pub(crate) fn check(
        &self,
        request: &mut Request<Incoming>,
        heads: &Arc<OpenHeads>,
    ) -> Result<(), Box<Response<Bytes>>> {
        let checked = self.names.check(request.method(), request.uri(), request.version(), request.headers());
        let checked = checked.and_then(|()| self.reserve_head(request, heads));
        checked.map_err(|failure| {
            self.metrics.refused(&failure);
            Box::new((self.render)(request.uri(), request.headers(), &failure))
        })
    }

    fn reserve_head(&self, request: &mut Request<Incoming>, heads: &Arc<OpenHeads>) -> Result<(), Failure> {
        if request.version() < Version::HTTP_2 {
            return Ok(()); // bounded by hyper
        }
        if request.headers().len() > HEADERS {
            return Err(Failure::HeadTooLarge);
        }
        let uri = request.uri();
        let target = uri.path_and_query().map_or(0, |path| path.as_str().len())
            + uri.authority().map_or(0, |authority| authority.as_str().len());
        let fields =
            request.headers().iter().map(|(name, value)| HEADER_OVERHEAD + (name.as_str().len() + value.len()) as u64);
        let permit = heads.reserve(target as u64 + fields.sum::<u64>(), &self.heads_budget)?;
        request.extensions_mut().insert(Arc::new(permit));
        Ok(())
    }
}

impl OpenHeads {
    fn reserve(self: &Arc<Self>, bytes: u64, budget: &Arc<BudgetShare>) -> Result<HeadPermit, Failure> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = state.bytes + bytes;
        if all > LIMIT {
            return Err(Failure::HeadTooLarge);
        }
        let reserved = state.permit.as_ref().map_or(0, BodyPermit::bytes);
        if let Some(missing) = all.checked_sub(UNCOUNTED + reserved).filter(|missing| *missing > 0) {
            let permit = state.permit.get_or_insert_with(|| budget.body());
            if !permit.grow(missing.next_multiple_of(STEP), Instant::now()) {
                return Err(Failure::NodeBusy);
            }
        }
        state.bytes = all;
        Ok(HeadPermit { bytes, heads: Arc::clone(self) })
    }
}

impl Drop for HeadPermit {
    fn drop(&mut self) {
        let mut state = self.heads.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes -= self.bytes;
        if state.bytes <= UNCOUNTED {
            state.permit = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics};

    #[test]
    fn large_heads_are_reserved_in_the_budget() {
        let budget = BodyBudget::new(2 * 256 * 1024, 1, BodyMetrics::default());
        let room = budget.share();
        let (heads, others) = (Arc::<OpenHeads>::default(), Arc::<OpenHeads>::default());
        let first = heads.reserve(UNCOUNTED, &room).unwrap();
        assert_eq!(budget.reserved(), 0, "small heads are not counted");
        let second = heads.reserve(1, &room).unwrap();
        let third = heads.reserve(STEP - 1, &room).unwrap();
        assert_eq!(budget.reserved(), STEP);
        assert_eq!(others.reserve(UNCOUNTED + 3 * STEP + 1, &room).unwrap_err(), Failure::NodeBusy);
        let other = others.reserve(UNCOUNTED + 3 * STEP, &room).unwrap();
        assert_eq!(budget.reserved(), 4 * STEP);
        drop((first, second, third));
        assert_eq!(budget.reserved(), 3 * STEP);
        drop(other);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn heads_of_one_connection_are_bounded_whatever_the_budget() {
        let room = BodyBudget::new(u64::MAX, 1, BodyMetrics::default()).share();
        let heads = Arc::<OpenHeads>::default();
        let most = heads.reserve(LIMIT, &room).unwrap();
        assert_eq!(heads.reserve(1, &room).unwrap_err(), Failure::HeadTooLarge);
        drop(most);
        heads.reserve(1, &room).unwrap();
    }
}
