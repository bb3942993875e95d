//! `omnictl logs`: what a model wrote, line by line.

use http_body_util::BodyExt;
use hyper::Method;
use omni_control_api::LogEntry;

use super::{Context, refused};
use crate::cli::Logs;
use crate::client::{ClientError, empty, model_route, request};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{moment, printable};
use crate::output::{Format, Out, note};

/// Longest line of the answer; the node keeps log lines far shorter.
const LINE_LIMIT: usize = 1 << 20;

pub(super) async fn run(context: &mut Context<'_>, arguments: &Logs) -> Result<Exit, Failure> {
    let Logs { model, follow, lines, request: of } = arguments;
    let lines = if of.is_some() { u32::MAX } else { *lines };
    let route = model_route(model, &format!("/logs?lines={lines}&follow={follow}"));
    let mut body = match context.client.send(request(Method::GET, &route, empty())).await {
        Ok(answer) => answer.into_body(),
        Err(error) => return Err(refused(&context.client, model, error).await),
    };
    let mut pending = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(ClientError::Broken)?.into_data() else { continue };
        pending.extend_from_slice(&bytes);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let line = &line[..end];
            if of.as_ref().is_none_or(|id| is_of(line, id)) {
                print(&mut context.out, context.format, &route, line)?;
            }
        }
        if pending.len() > LINE_LIMIT {
            return Err(Failure::Stream { model: model.clone(), reason: "a line of its log has no end".to_owned() });
        }
        context.out.flush()?;
    }
    if *follow {
        note(format_args!(
            "the log of `{model}` has ended: the daemon stopped or was upgraded, or the model was removed"
        ));
    }
    Ok(Exit::Ok)
}

/// Returns true if the line belongs to this request, among others perhaps.
fn is_of(line: &[u8], request: &str) -> bool {
    let entry = serde_json::from_slice::<LogEntry>(line).ok();
    entry.and_then(|entry| entry.request_id).is_some_and(|ids| ids.split(',').any(|id| id == request))
}

pub(super) fn print(out: &mut Out<'_>, format: Format, route: &str, line: &[u8]) -> Result<(), Failure> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let entry: LogEntry =
        serde_json::from_slice(line).map_err(|source| ClientError::Answer { route: route.to_owned(), source })?;
    match format {
        Format::Json => out.bytes(&[line, b"\n"].concat()),
        Format::Table => {
            let LogEntry { unix_ms, instance, stream, request_id: _, text } = entry;
            let text = printable(&format!("{instance:<12} {stream:<6} {text}"));
            out.line(format_args!("{} {text}", moment(unix_ms)))
        }
    }
}
