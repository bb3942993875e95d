//! `omnictl deploy`: a directory becomes a model's next version, or nothing happens.
//!
//! The directory is checked as `omnictl check` does, published in one step ([`publish`]) and followed until it serves.

mod publish;

use std::fs;
use std::path::{Path, PathBuf};

use omni_config::node::{Snapshots, SourceRule, Weights};
use omni_config::{ByteSize, ModelName};
use omni_control_api::{Model, Node};

use super::follow::{Wait, short, until_it_serves};
use super::{Context, check};
use crate::cli::Deploy;
use crate::client::model_route;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, note};
use publish::Place;

pub(super) async fn run(context: &mut Context<'_>, arguments: &Deploy) -> Result<Exit, Failure> {
    let Deploy { dir, name, timeout } = arguments;
    let dir = fs::canonicalize(dir).map_err(|source| Failure::File { verb: "find", path: dir.clone(), source })?;
    let name = name.clone().map_or_else(|| name_of(&dir), Ok)?;
    let node: Node = context.client.get("/v1/node").await?.value()?;
    if let Some(single) = node.single_model {
        let (dir, then) = (node.models_dir, "change that and `omnictl upgrade`");
        let reason = format!("this node serves `{single}` alone, from {dir}, which is not watched: {then}");
        return Err(Failure::NotPublished { model: name, reason });
    }
    let bounds = Snapshots { files: node.snapshot_files_limit, bytes: ByteSize::from_bytes(node.snapshot_bytes_limit) };
    let folders = Weights {
        folders: node.weights_folders.iter().map(PathBuf::from).collect(),
        // Prefixes that this program does not understand grant nothing here, and the node decides.
        sources: node
            .weights_sources
            .iter()
            .filter_map(|prefix| Some((prefix.parse().ok()?, SourceRule::default())))
            .collect(),
        ..Weights::default()
    };
    let findings = check::of_content(&dir, &bounds, node.require_hashes, Some(&folders))?;
    if !findings.is_empty() {
        check::show(context, &findings)?;
        return Err(Failure::Findings(findings.len()));
    }
    let before = context.client.get(&model_route(&name, "")).await.and_then(|answer| answer.value::<Model>()).ok();
    let version = copy(dir, Place::new(PathBuf::from(node.models_dir), &name), bounds).await?;
    let same = before.is_some_and(|model| model.directory.version.as_deref() == Some(version.as_str()));
    let news = if same { "the same content as before" } else { "published" };
    note(format_args!("{name}: version {}, {news}", short(&version)));

    let wait = Wait { model: &name, version: &version, published: true, timeout: *timeout };
    let answer = until_it_serves(context, &wait).await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => context.out.line(format_args!("{name}: version {} serves", short(&version)))?,
    }
    Ok(Exit::Ok)
}

/// In a thread, so that Ctrl-C ends also a long copy.
async fn copy(dir: PathBuf, place: Place, bounds: Snapshots) -> Result<String, Failure> {
    let copying = tokio::task::spawn_blocking(move || publish::publish(&dir, &place, &bounds));
    copying.await.map_err(|error| Failure::Start(error.into()))?
}

fn name_of(dir: &Path) -> Result<ModelName, Failure> {
    let last = Path::new(dir.file_name().unwrap_or_default());
    ModelName::from_path(last).map_err(|source| Failure::Name { text: last.display().to_string(), source })
}
