//! Request bodies that the node itself reads, as a whole or in pieces.

use crate::body::{check_head, collect};
use crate::forward::{ForwardedBody, unread_body};
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

/// Begins to receive a request's body in pieces, whatever its media type is. Its length is the caller's to bound.
///
/// # Errors
/// The body is encoded or longer than `limit`, or the node has no descriptors left.
pub fn receive_pieces(
    parts: &Parts,
    body: Incoming,
    limit: u64,
    share: &Arc<BudgetShare>,
) -> Result<ForwardedBody, Failure> {
    check_head(&parts.headers, body.size_hint().exact(), limit)?;
    unread_body(parts, body, share)
}
