//! Files and batches: uploads, requests, objects, lists.

mod file;
mod object;
mod page;
mod request;

pub use file::{FileDeleted, FileList, FileObject, UploadEvent, UploadForm, UploadReader};
pub use object::{
    BatchErrors, BatchList, BatchObject, BatchUsage, InputDetails, LineFault, OutputDetails, RequestCounts,
};
pub use page::{PAGE, PageQuery};
pub use request::{BatchBody, BatchRequest, ENDPOINTS, ExpiresAfter, batch_request};

use bytes::Bytes;
use serde::Serialize;

/// The answer with a file, a batch or a list of them.
#[must_use]
pub fn object_answer(object: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(object).unwrap_or_default())
}
