//! `omnictl version`: which omnictl, and which daemon.

use omni_control_api::Node;
use serde_json::json;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, note};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn run(context: &mut Context<'_>) -> Result<Exit, Failure> {
    // The version of this program is known in any case; a daemon that is not there is no failure here.
    let node = context.client.get("/v1/node").await.and_then(|answer| answer.value::<Node>());
    match context.format {
        Format::Json => {
            let scheduler = node.as_ref().ok().map(|node| &node.version);
            context.out.json(&json!({"omnictl": VERSION, "omni-scheduler": scheduler}).to_string())?;
        }
        Format::Table => {
            context.out.line(format_args!("omnictl {VERSION}"))?;
            if let Ok(node) = &node {
                context.out.line(format_args!("omni-scheduler {}", node.version))?;
            }
        }
    }
    if let Err(error) = node {
        note(format_args!("omni-scheduler: {error}"));
    }
    Ok(Exit::Ok)
}
