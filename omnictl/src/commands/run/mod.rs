//! `omnictl run`: one request to a model, and its answer as it arrives.
//!
//! [`body`] makes the request out of the command line, [`answer`] prints what comes back.

mod answer;
mod body;

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};

use super::{Context, refused};
use crate::cli::Run;
use crate::client::{model_route, request};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Out;

/// Tells the daemon how long the caller waits.
const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-omni-timeout-ms");

pub(super) async fn run(context: &mut Context<'_>, arguments: &Run) -> Result<Exit, Failure> {
    let model = &arguments.model;
    let route = model_route(model, "/run");
    let (media_type, body) = body::of(arguments).await?;
    let mut request = request(Method::POST, &route, body);
    request.headers_mut().insert(CONTENT_TYPE, media_type);
    request.headers_mut().extend(headers(arguments)?);

    let answer = match context.client.send(request).await {
        Ok(answer) => answer,
        Err(error) => return Err(refused(&context.client, model, error).await),
    };
    match arguments.out.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let created = File::create(path);
            let mut file = created.map_err(|source| Failure::File { verb: "create", path: path.to_owned(), source })?;
            answer::print(&mut Out::file(&mut file, path), context.format, model, &route, answer, true).await?;
        }
        None => {
            let bytes_welcome = arguments.out.is_some() || !std::io::stdout().is_terminal();
            answer::print(&mut context.out, context.format, model, &route, answer, bytes_welcome).await?;
        }
    }
    Ok(Exit::Ok)
}

/// The headers given with `--header`, and the one for `--timeout`. A header given twice counts once, as last given.
fn headers(arguments: &Run) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    if let Some(timeout) = arguments.timeout {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        headers.insert(TIMEOUT_HEADER, HeaderValue::from(milliseconds));
    }
    for text in &arguments.header {
        let header = text.split_once(':').and_then(|(name, value)| {
            let name: HeaderName = name.trim().parse().ok()?;
            Some((name, value.trim().parse::<HeaderValue>().ok()?))
        });
        let (name, value) = header.ok_or_else(|| {
            Failure::Input(format!(
                "`{text}` is not a header: write a name, a colon and a value, as in 'accept: image/png'"
            ))
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}
