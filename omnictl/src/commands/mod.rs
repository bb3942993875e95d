//! The commands, one file each, and their shared parts: the context they run in, and hints for unknown models.
//!
//! Called by `main`. Invariants: a command that talks to the daemon ends at Ctrl-C, which drops its connection; the
//! others need neither a runtime nor a daemon.

mod check;
mod completion;
mod deploy;
mod doctor;
mod explain;
mod follow;
mod gpu;
mod history;
mod init;
mod jobs;
mod lifecycle;
mod list;
mod logs;
mod pull;
mod rollback;
mod run;
mod show;
mod stack;
mod status;
mod token;
mod top;
mod upgrade;
mod usage;
mod version;
mod wait;

use omni_config::ModelName;
use omni_control_api::Models;

use crate::cli::{Cli, Command};
use crate::client::{Answer, Client, ClientError, MODELS_UNKNOWN, NO_SUCH_MODEL, NOT_ALLOWED, model_route};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Out};

/// How similar a name must be to be offered, from 0 to 1.
const SIMILAR: f64 = 0.7;
/// Names offered at most.
const OFFERED: usize = 3;

/// Context of every command.
struct Context<'a> {
    client: Client,
    format: Format,
    out: Out<'a>,
}

/// Runs the command of a command line.
pub(crate) fn run(cli: Cli, out: Out<'_>) -> Result<Exit, Failure> {
    let mut context = Context { client: Client::new(&cli.socket), format: cli.output, out };
    let context = &mut context;
    match cli.command {
        Command::List => on_node(list::run(context)),
        Command::Status { model: None } => on_node(status::node(context)),
        Command::Status { model: Some(model) } => on_node(status::model(context, &model)),
        Command::Show { model, effective } => on_node(show::run(context, &model, effective)),
        Command::Run(arguments) => on_node(run::run(context, &arguments)),
        Command::Logs(arguments) => on_node(logs::run(context, &arguments)),
        Command::Stack { model } => on_node(stack::run(context, &model)),
        Command::Pull(arguments) => on_node(pull::run(context, &arguments)),
        Command::Start(arguments) => on_node(lifecycle::run(context, lifecycle::Verb::Start, &arguments)),
        Command::Stop(arguments) => on_node(lifecycle::run(context, lifecycle::Verb::Stop, &arguments)),
        Command::Restart(arguments) => on_node(lifecycle::run(context, lifecycle::Verb::Restart, &arguments)),
        Command::Wait { model, state, timeout } => on_node(wait::run(context, &model, state, timeout)),
        Command::Deploy(arguments) => on_node(deploy::run(context, &arguments)),
        Command::Rollback(arguments) => on_node(rollback::run(context, &arguments)),
        Command::History { model } => on_node(history::run(context, &model)),
        Command::Explain { model } => on_node(explain::run(context, &model)),
        Command::Top { once } => on_node(top::run(context, once)),
        Command::Usage { since } => on_node(usage::run(context, since)),
        Command::Jobs { command } => on_node(jobs::run(context, command)),
        Command::Gpu => on_node(gpu::run(context)),
        Command::Upgrade => on_node(upgrade::run(context)),
        Command::Version => on_node(version::run(context)),
        Command::Init { name, kind, dir } => init::run(context, &name, kind, &dir),
        Command::Check { dir } => check::run(context, &dir),
        Command::Doctor { config } => on_node(doctor::run(context, config.as_deref())),
        Command::Token { name } => token::run(context, &name),
        Command::Completion { shell } => completion::run(context, shell),
    }
}

/// Runs a command that talks to the daemon, until it is done or interrupted.
fn on_node(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Start)?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = command => result,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(Failure::Start)?;
                Err(Failure::Interrupted)
            }
        }
    });
    // A thread may still wait in a read of standard input; the process ends without it.
    runtime.shutdown_background();
    result
}

impl Context<'_> {
    /// The daemon's answer about a model, by the route behind its name.
    async fn ask(&self, model: &ModelName, rest: &str) -> Result<Answer, Failure> {
        match self.client.get(&model_route(model, rest)).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(refused(&self.client, model, error).await),
        }
    }
}

/// Adds the model to a refusal of the daemon, and similar names when there is no such model.
async fn refused(client: &Client, model: &ModelName, error: ClientError) -> Failure {
    let ClientError::Refused(problem) = error else { return error.into() };
    if [NOT_ALLOWED, MODELS_UNKNOWN].contains(&problem.kind.as_str()) {
        return ClientError::Refused(problem).into();
    }
    if problem.kind != NO_SUCH_MODEL {
        return Failure::Refused { model: model.clone(), status: problem.status, detail: problem.detail };
    }
    // The list only makes the message better: without it, the message stands.
    let answer = client.get("/v1/models").await;
    let models = answer.and_then(|answer| answer.value::<Models>()).map_or_else(|_| Vec::new(), |list| list.models);
    let near = nearest(model.as_str(), models.into_iter().map(|model| model.name));
    Failure::NoSuchModel { detail: problem.detail, near }
}

/// The names most like `wanted`, the nearest first.
fn nearest(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let mut near: Vec<(f64, String)> = names
        .map(|name| {
            // A name without its folders (`llama` for `@cf/meta/llama`) means the last segment.
            let last = name.rsplit('/').next().unwrap_or_default();
            (strsim::jaro_winkler(wanted, &name).max(strsim::jaro_winkler(wanted, last)), name)
        })
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .collect();
    near.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    near.into_iter().map(|(_, name)| name).take(OFFERED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_offered_nearest_first() {
        let names = || ["cowsay", "cowsay-2", "embeddings", "@cf/meta/llama"].map(str::to_owned).into_iter();
        for (wanted, near) in [
            ("cowsey", &["cowsay", "cowsay-2"][..]),
            ("llama", &["@cf/meta/llama"]),
            ("embedings", &["embeddings"]),
            ("thumbnail", &[]),
        ] {
            assert_eq!(nearest(wanted, names()), near, "{wanted}");
        }
    }
}
