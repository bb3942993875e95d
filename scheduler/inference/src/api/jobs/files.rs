//! `/v1/files`: uploads, which go to the disk as they come, lists, contents.

use super::{JobsRequest, failure, file_id, now};
use crate::answer::{AnswerBody, AnswerStream};
use crate::file_body::{FileBody, LEAVING, READ_TIMEOUT};
use hyper::Response;
use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use omni_ingress::body::IncomingBody;
use omni_ingress::forward::ForwardedBody;
use omni_ingress::{ReadDeadline, receive_pieces};
use omni_jobs::{FileId, FileInfo, Page, Purpose, Upload};
use omni_openai::batch::{FileDeleted, FileList, FileObject, PageQuery, UploadEvent, UploadReader};
use omni_request_error::Failure;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Longest body of an upload, in bytes. The bound of its file, which is lower, is the store's.
const LONGEST_UPLOAD: u64 = 1 << 30;
/// Bytes of an upload that are in memory at a time.
const UPLOAD_BUFFERS: u64 = 512 * 1024;
/// Longest wait for the next piece of an upload.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest time of an upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

impl JobsRequest<'_> {
    pub(super) async fn upload(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let parts = self.request.parts;
        let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut reader = UploadReader::new(media_type)?;
        let share = self.share();
        let mut buffers = share.body();
        if !buffers.grow(UPLOAD_BUFFERS, Instant::now()) {
            return Err(Failure::NodeBusy);
        }
        let mut body = receive_pieces(parts, incoming.take()?, LONGEST_UPLOAD, &share)?;
        let store_pieces = self.store_pieces(&mut body, &mut reader);
        let upload = tokio::time::timeout(UPLOAD_TIMEOUT, store_pieces).await.map_err(|_| Failure::BodyTimeout)??;
        *incoming = IncomingBody::Complete;
        let expires_after = reader.finish()?;
        let upload = upload.ok_or(Failure::BadRequest("the form has no file".to_owned()))?;
        let info = upload.finish(expires_after, now()).await.map_err(|error| failure(&error, "file"))?;
        self.respond(&object(&info))
    }

    /// Writes the file of a form to the disk, piece by piece.
    async fn store_pieces(
        &self,
        body: &mut ForwardedBody,
        reader: &mut UploadReader,
    ) -> Result<Option<Upload>, Failure> {
        let mut upload = None;
        loop {
            let next = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            let Some(frame) = tokio::time::timeout(SILENCE, next).await.map_err(|_| Failure::BodyTimeout)? else {
                return Ok(upload);
            };
            let frame = frame.map_err(|why| Failure::BadRequest(format!("the request's body broke off: {why}")))?;
            let Ok(piece) = frame.into_data() else { continue };
            reader.push(&piece);
            while let Some(event) = reader.next_event()? {
                match (event, &mut upload) {
                    (UploadEvent::Begin(name), upload) => {
                        let begun = self.store.upload(self.owner, &name).await;
                        *upload = Some(begun.map_err(|error| failure(&error, "file"))?);
                    }
                    (UploadEvent::Content(bytes), Some(upload)) => {
                        upload.write(&bytes).await.map_err(|error| failure(&error, "file"))?;
                    }
                    (UploadEvent::Content(_), None) => {}
                }
            }
        }
    }

    pub(super) async fn files(&self) -> Result<Response<AnswerBody>, Failure> {
        let PageQuery { after, limit, purpose } = PageQuery::parse(self.request.parts.uri.query())?;
        let after = after.map(|after| file_id(&after)).transpose()?;
        let (scope, now) = (self.scope(), now());
        let purpose = match purpose.as_deref().map(Purpose::parse) {
            Some(None) => return self.respond(&FileList::new(Vec::new(), false)), // there are none of another purpose
            known => known.flatten(),
        };
        let list =
            async |page| self.store.files(scope, purpose, page, now).await.map_err(|error| failure(&error, "after"));
        let files = list(Page { after, limit }).await?;
        let last = files.last().filter(|_| files.len() == limit);
        let has_more = match last {
            Some(last) => !list(Page { after: Some(last.id), limit: 1 }).await?.is_empty(),
            None => false,
        };
        self.respond(&FileList::new(files.iter().map(object).collect(), has_more))
    }

    pub(super) async fn file(&self, id: FileId) -> Result<Response<AnswerBody>, Failure> {
        let info = self.store.file(self.scope(), id, now()).await.map_err(|error| failure(&error, "id"))?;
        self.respond(&object(&info))
    }

    pub(super) async fn delete_file(&self, id: FileId) -> Result<Response<AnswerBody>, Failure> {
        self.store.delete_file(self.scope(), id, now()).await.map_err(|error| failure(&error, "id"))?;
        self.respond(&FileDeleted::new(id.to_string()))
    }

    pub(super) async fn content(&self, id: FileId) -> Result<Response<AnswerBody>, Failure> {
        let found = self.store.content(self.scope(), id, now()).await;
        let (info, content) = found.map_err(|error| failure(&error, "id"))?;
        let body = AnswerStream::File(FileBody::new(content, info.bytes));
        let mut response = Response::new(AnswerBody::Stream(Box::new(body)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let at = Instant::now() + READ_TIMEOUT;
        response.extensions_mut().insert(ReadDeadline { at, after_end: Some(LEAVING), permit: None });
        Ok(response)
    }
}

fn object(info: &FileInfo) -> FileObject {
    FileObject {
        id: info.id.to_string(),
        object: "file",
        bytes: info.bytes,
        created_at: info.created_at.seconds(),
        expires_at: info.expires_at.seconds(),
        filename: info.name.clone(),
        purpose: match info.purpose {
            Purpose::Batch | Purpose::Queued => "batch",
            Purpose::BatchOutput => "batch_output",
        },
        status: "processed",
    }
}
