//! Request bodies that the node itself reads as a whole.

use crate::body::{check_head, collect};
use crate::forward::unread_body;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use omni_body::{BodyPermit, BudgetShare};
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::Instant;

/// Receives a request's whole body into memory, whatever its media type is and however long it is.
///
/// # Errors
/// Those of [`receive`](crate::body::receive).
pub async fn receive_whole(
    parts: &Parts,
    body: Incoming,
    limit: u64,
    share: &Arc<BudgetShare>,
    deadline: Instant,
) -> Result<(Bytes, BodyPermit), Failure> {
    let exact = body.size_hint().exact();
    check_head(&parts.headers, exact, limit)?;
    collect(unread_body(parts, body, share)?, exact, limit, share, deadline).await
}
