//! Sources: which server has a source's files, and which files there are.

mod hub;
mod s3;
mod web;

use crate::client::{Access, Connections};
use crate::failure::Failure;
use crate::signature::Signer;
use crate::url::{Origin, Url};
use hyper::header::HeaderValue;
use omni_config::Source;
use omni_config::source::is_file_path;
use omni_weights::{Digest, MOST_FILES, Order, nested};
use std::collections::BTreeSet;

/// File of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Path below the folder of weights.
    pub(crate) path: String,
    pub(crate) url: Url,
    pub(crate) size: u64,
    /// Digest that its content must have.
    pub(crate) sha256: Option<Digest>,
    /// Validator, as the source's own server has it.
    pub(crate) etag: Option<String>,
}

/// A source with the order's wishes.
pub(crate) struct Listing<'a> {
    pub(crate) order: &'a Order,
    pub(crate) source: &'a Source,
    pub(crate) endpoint: Url,
}

/// URL of the source's own server.
pub(crate) fn endpoint(source: &Source, order: &Order) -> Result<Url, Failure> {
    let region = order.region.as_deref().unwrap_or(s3::REGION);
    let text = match (source, &order.endpoint) {
        (Source::S3 { .. } | Source::Hub { .. }, Some(endpoint)) => endpoint.clone(),
        (Source::S3 { bucket, .. }, None) => s3::public_endpoint(bucket, region),
        (Source::Hub { .. }, None) => hub::PUBLIC.to_owned(),
        (Source::Http { .. }, _) => source.to_string(),
    };
    Url::parse(&text).map_err(|error| Failure::Source(format!("{text}: {error}")))
}

/// How requests to the source's own server are authorised.
pub(crate) fn access(source: &Source, order: &Order, secret: Option<&str>) -> Result<Access, Failure> {
    let Some(secret) = secret else { return Ok(Access::Anyone) };
    match source {
        Source::S3 { .. } => {
            let signer = Signer::parse(secret, order.region.as_deref().unwrap_or(s3::REGION));
            let wrong = "the credential of this source has not the access key and the secret key in two lines";
            signer.map(Access::Signed).ok_or_else(|| Failure::Source(wrong.to_owned()))
        }
        Source::Hub { .. } | Source::Http { .. } => {
            let token = HeaderValue::from_str(&format!("Bearer {}", secret.trim()));
            let wrong = "the credential of this source is no token in one line";
            let mut token = token.map_err(|_| Failure::Source(wrong.to_owned()))?;
            token.set_sensitive(true);
            Ok(Access::Bearer(token))
        }
    }
}

/// A source has more than so many files, or pages of them.
fn too_long(order: &Order, most: &str) -> Failure {
    Failure::Source(format!(
        "{} has more than {most}, which is the most: list the files that the model needs in `files` in [weights], or \
         pack them into fewer",
        order.source
    ))
}

impl Listing<'_> {
    /// The files of the source that the order wants, in the order of their paths.
    pub(crate) async fn files(&self, connections: &mut Connections) -> Result<Vec<RemoteFile>, Failure> {
        let mut files = match self.source {
            Source::S3 { bucket, key } => s3::files(self, connections, bucket, key).await?,
            Source::Hub { repository, revision } => hub::files(self, connections, repository, revision).await?,
            Source::Http { path, .. } => web::files(self, connections, path).await?,
        };
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files.dedup_by(|one, other| one.path == other.path);
        if files.is_empty() {
            return Err(Failure::Missing { url: self.order.source.clone() });
        }
        if files.len() > MOST_FILES {
            return Err(too_long(self.order, &format!("{MOST_FILES} files")));
        }
        if let Some(file) = files.iter().find(|file| !is_file_path(&file.path)) {
            let path = file.path.escape_debug();
            return Err(Failure::Source(format!("{} has a file of the name `{path}`", self.order.source)));
        }
        let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        if let Some((folder, path)) = nested(&paths) {
            let (source, folder, path) = (&self.order.source, folder.escape_debug(), path.escape_debug());
            return Err(Failure::Source(format!(
                "{source} has `{folder}` and `{path}`, and no folder has both: list the files that the model needs in \
                 `files` in [weights]"
            )));
        }
        if let Some(digest) = &self.order.sha256 {
            match files.as_mut_slice() {
                [file] => file.sha256 = Some(digest.clone()),
                _ => {
                    return Err(Failure::Source(format!(
                        "{} has {} files, and `sha256` in [weights] is of one: list them in `files` in [weights]",
                        self.order.source,
                        files.len()
                    )));
                }
            }
        }
        Ok(files)
    }

    fn origin(&self) -> Origin {
        self.endpoint.origin.clone()
    }

    fn url(&self, path: String) -> Url {
        Url { origin: self.origin(), path }
    }

    /// Asks the server for sizes of the files that the order lists, below a path.
    async fn listed_below(&self, connections: &mut Connections, folder: &str) -> Result<Vec<RemoteFile>, Failure> {
        let mut files = Vec::new();
        for (path, sha256) in &self.order.files {
            let url = self.url(format!("{folder}/{}", crate::url::escape(path, true)));
            files.push(web::probe(connections, url, path.clone(), sha256.clone()).await?);
        }
        Ok(files)
    }
}
