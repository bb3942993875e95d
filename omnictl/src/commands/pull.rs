//! `omnictl pull`: has a model's environment built and its weights fetched, and waits for both.
//!
//! Instances say nothing of it: they may run with what was there before, or be held.

use omni_control_api::{Generation, Model, Preparation, Prepared, Role, State};

use super::follow::Patience;
use super::{Context, lifecycle};
use crate::cli::Lifecycle;
use crate::client::{Answer, model_route};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{gist, size};

/// Characters of a reason in an error.
const REASON_WIDTH: usize = 4000;

/// Outcome of a pull that has nothing to do.
const ALREADY: &str = "already here";

/// How far the preparation of a version is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done,
    Underway,
    /// For this reason.
    Failed(String),
    /// Another version has taken the place of this one.
    Replaced,
}

pub(super) async fn run(context: &mut Context<'_>, arguments: &Lifecycle) -> Result<Exit, Failure> {
    let asked = ask(context, arguments).await;
    lifecycle::show(context, &arguments.model, asked).await
}

/// Asks for the preparation; with `--wait`, returns the model as it is at its end, and what was done.
async fn ask(context: &Context<'_>, arguments: &Lifecycle) -> Result<(Answer, Option<String>), Failure> {
    let Lifecycle { model: name, wait, timeout } = arguments;
    let patience = Patience::new(name, *timeout);
    let mut answer = context.client.post(&model_route(name, "/pull")).await?;
    if !wait {
        return Ok((answer, None));
    }
    let mut was_there = true;
    let not_prepared = |reason| Failure::NotPrepared { model: name.clone(), reason };
    let version = version(&answer.value()?).map_err(not_prepared)?;
    loop {
        match progress(&answer.value()?, &version) {
            Progress::Done => {
                let generation = answer.value::<Model>()?.generation(&version).cloned();
                let work = generation.and_then(|generation| generation.prepared);
                let done = if was_there { Some(ALREADY.to_owned()) } else { work.map(done) };
                return Ok((answer, done));
            }
            Progress::Underway => was_there = false,
            Progress::Failed(reason) => return Err(not_prepared(reason)),
            Progress::Replaced => return Err(Failure::Replaced { model: name.clone() }),
        }
        patience.pause(State::Preparing.as_str()).await?;
        answer = context.client.get(&model_route(name, "")).await?;
    }
}

/// The version that a pull prepares, or why there is none: the content of the model's directory, unless a rollback chose
/// another one.
fn version(model: &Model) -> Result<String, String> {
    if let (Some(refused), None) = (&model.directory.refused, &model.pinned) {
        return Err(gist(refused, REASON_WIDTH));
    }
    let serving = || model.generations.iter().find(|generation| generation.role == Role::Serving);
    let generation = model.candidate().or_else(serving);
    let unread = || "the node has not read its directory yet, try again".to_owned();
    generation.map(|generation| generation.version.clone()).ok_or_else(unread)
}

fn progress(model: &Model, version: &str) -> Progress {
    let generation = model.generation(version).filter(|generation| generation.role != Role::Previous);
    let Some(Generation { preparation, message, .. }) = generation else { return Progress::Replaced };
    match preparation {
        Some(Preparation::Done) => Progress::Done,
        Some(Preparation::Underway) => Progress::Underway,
        Some(Preparation::Failed) => {
            Progress::Failed(gist(message.as_deref().unwrap_or("the node does not say why"), REASON_WIDTH))
        }
        None => Progress::Failed("it has been ended: by `omnictl stop`, or as nothing needs it any more".to_owned()),
    }
}

/// Work of a preparation: "fetched 40MiB in 3.1s".
fn done(work: Prepared) -> String {
    let Prepared { seconds, fetched_bytes, built } = work;
    let fetched = (fetched_bytes > 0).then(|| format!("fetched {}", size(fetched_bytes)));
    let built = built.then(|| "built its environment".to_owned());
    let work: Vec<String> = built.into_iter().chain(fetched).collect();
    if work.is_empty() { ALREADY.to_owned() } else { format!("{} in {seconds:.1}s", work.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use omni_control_api::Directory;

    use super::*;

    fn generation(version: &str, role: Role, preparation: Option<Preparation>) -> Generation {
        let (version, message) = (version.to_owned(), Some("fetching weights from a: 403".to_owned()));
        Generation { version, role, state: State::Ready, message, retry_in_seconds: None, preparation, prepared: None }
    }

    #[test]
    fn a_pull_is_done_when_its_version_is_prepared_whatever_instances_do() {
        let failed = || Progress::Failed("fetching weights from a: 403".to_owned());
        let given_up =
            || Progress::Failed("it has been ended: by `omnictl stop`, or as nothing needs it any more".to_owned());
        for (preparation, expected) in [
            (Some(Preparation::Underway), Progress::Underway),
            (Some(Preparation::Done), Progress::Done),
            (Some(Preparation::Failed), failed()),
            (None, given_up()),
        ] {
            for (state, held) in State::ALL.into_iter().flat_map(|state| [(state, false), (state, true)]) {
                let other = generation("other", Role::Previous, Some(Preparation::Done));
                let generations = vec![generation("new", Role::Serving, preparation), other];
                let model = Model { state, held, generations, ..Model::unseen("m".to_owned()) };
                assert_eq!(progress(&model, "new"), expected, "{state:?} {held}");
                assert_eq!(progress(&model, "other"), Progress::Replaced);
                assert_eq!(progress(&model, "gone"), Progress::Replaced);
            }
        }
    }

    #[test]
    fn what_was_done_is_one_line() {
        let table = [
            (0, false, "already here"),
            (0, true, "built its environment in 2.5s"),
            (1, false, "fetched 1B in 2.5s"),
            (41_943_040, false, "fetched 40MiB in 2.5s"),
            (7, true, "built its environment and fetched 7B in 2.5s"),
        ];
        for (fetched_bytes, built, expected) in table {
            assert_eq!(done(Prepared { seconds: 2.49, fetched_bytes, built }), expected);
        }
    }

    #[test]
    fn the_newest_version_is_the_one_that_is_pulled() {
        let serving = || generation("old", Role::Serving, None);
        let candidate = || generation("new", Role::Candidate, None);
        let refused = |pinned: Option<&str>| Model {
            directory: Directory { version: None, refused: Some("unknown key `a`".to_owned()) },
            pinned: pinned.map(str::to_owned),
            generations: vec![serving()],
            ..Model::unseen("m".to_owned())
        };
        let model = |generations| Model { generations, ..Model::unseen("m".to_owned()) };
        let table = [
            (model(vec![serving(), candidate()]), Ok("new")),
            (model(vec![serving(), generation("older", Role::Previous, None)]), Ok("old")),
            (model(Vec::new()), Err("the node has not read its directory yet, try again")),
            (refused(None), Err("unknown key `a`")),
            (refused(Some("old")), Ok("old")),
        ];
        for (model, expected) in table {
            assert_eq!(version(&model), expected.map(str::to_owned).map_err(str::to_owned), "{model:?}");
        }
    }
}
