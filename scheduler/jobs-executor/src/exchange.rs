//! Request to the node's own API and its whole response, over a connection in memory.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use omni_inference::{BatchItem, DataApi, ItemFailure};
use omni_request_error::Failure;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes in each direction of the connection.
const PIPE: usize = 64 * 1024;

/// Response to an item.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body; `None`: it is longer than the bound.
    pub(crate) body: Option<Bytes>,
    /// Cause of a response that the node itself has made.
    pub(crate) failure: Option<Failure>,
}

/// Sends the request of an item. A body of more than `longest` bytes is not received. Dropped, it cancels the request.
///
/// # Errors
/// The response broke off.
pub(crate) async fn exchange(
    api: &Arc<DataApi>,
    item: &BatchItem,
    request: Request<Full<Bytes>>,
    longest: usize,
) -> Result<Received, hyper::Error> {
    let (near, far) = tokio::io::duplex(PIPE);
    let failure = Arc::<Mutex<Option<Failure>>>::default();
    let (api, item, cause) = (Arc::clone(api), item.clone(), Arc::clone(&failure));
    let service = service_fn(move |request| {
        let (api, item, cause) = (Arc::clone(&api), item.clone(), Arc::clone(&cause));
        async move {
            let mut response = api.serve_item(&item, request).await;
            if let Some(ItemFailure(failure)) = response.extensions_mut().remove() {
                *cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.keep_alive(false).header_read_timeout(None::<Duration>);
    let mut served = pin!(builder.serve_connection(TokioIo::new(far), service));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    let mut connection = pin!(connection);
    let mut received = pin!(async move {
        let response = sender.send_request(request).await?;
        let (parts, mut body) = response.into_parts();
        let mut whole = Some(BytesMut::new());
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame?.into_data() else { continue };
            match &mut whole {
                Some(bytes) if bytes.len() + piece.len() <= longest => bytes.extend_from_slice(&piece),
                _ => {
                    whole = None;
                    break;
                }
            }
        }
        Ok::<_, hyper::Error>((parts.status.as_u16(), parts.headers, whole.map(BytesMut::freeze)))
    });
    let (mut is_served, mut is_closed) = (false, false);
    let (status, headers, body) = loop {
        tokio::select! {
            biased;
            received = &mut received => break received?,
            _ = &mut served, if !is_served => is_served = true,
            _ = &mut connection, if !is_closed => is_closed = true,
        }
    };
    let failure = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Received { status, headers, body, failure })
}
