//! Admission of requests within the quotas of their tokens, and the mark of items of batches, which have none.

use hyper::http::Extensions;
use omni_auth::{Admission, TokenHolder};
use omni_config::name::ModelName;
use omni_ingress::{AlreadyAdmitted, ResponseGuard};
use omni_request_error::Failure;
use std::sync::Arc;

/// Item of a batch: extension of its request, which only the node itself sets.
#[derive(Debug, Clone)]
pub struct BatchItem {
    /// Name of the holder of the token that the batch was made with.
    pub owner: Arc<str>,
    /// Id of the batch.
    pub batch: Arc<str>,
    /// Position in the batch, from 0.
    pub number: u32,
}

/// Extension of the response to an item of a batch that failed.
#[derive(Debug, Clone)]
pub struct ItemFailure(pub Failure);

/// Admits a request to a model within the quota of its token. Returns the guard of its place, to be held until the response was written;
/// an item of a batch has none.
pub(crate) fn admit(
    holder: &Arc<TokenHolder>,
    name: &ModelName,
    extensions: &Extensions,
) -> Result<Option<ResponseGuard>, Failure> {
    if extensions.get::<BatchItem>().is_some() {
        return if holder.may_use(name) { Ok(None) } else { Err(Failure::ModelNotAllowed) };
    }
    let admission = match extensions.get::<AlreadyAdmitted>() {
        None => Admission::New,
        Some(AlreadyAdmitted) => Admission::Forwarded,
    };
    Ok(Some(ResponseGuard::new(holder.admit(name, admission)?)))
}
