//! `omnictl start`, `stop` and `restart`, and waiting for what they ask for.

use omni_config::ModelName;
use omni_control_api::{Model, State};

use super::follow::{Patience, Wait, until_it_serves};
use super::{Context, refused, status};
use crate::cli::Lifecycle;
use crate::client::{Answer, model_route};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

/// Action on a model.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
}

impl Verb {
    fn route(self) -> &'static str {
        match self {
            Self::Start => "/start",
            Self::Stop => "/stop",
            Self::Restart => "/restart",
        }
    }
}

/// How far a model is on its way.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done,
    Underway,
    Failed,
}

/// Where a model is on the way that `verb` sent it. `before` are the instances that ran when it was sent.
fn progress(verb: Verb, model: &Model, before: &[String]) -> Progress {
    let mut ready = model.instances.iter().filter(|instance| instance.state == State::Ready);
    match (verb, model.state) {
        (Verb::Stop, State::Stopped | State::Failed) => Progress::Done,
        (Verb::Stop, State::Preparing | State::Starting | State::Ready | State::Draining) => Progress::Underway,
        (Verb::Restart, State::Ready) if ready.any(|instance| before.contains(&instance.id)) => Progress::Underway,
        (Verb::Start | Verb::Restart, State::Ready) => Progress::Done,
        (Verb::Start | Verb::Restart, State::Failed) => Progress::Failed,
        (Verb::Start | Verb::Restart, State::Preparing | State::Starting | State::Draining | State::Stopped) => {
            Progress::Underway
        }
    }
}

/// The version that is started anew beside the one that serves. A restart leaves that one as it is until this one is
/// ready: how the model's instances do says nothing of it.
fn started_beside(verb: Verb, model: &Model) -> Option<String> {
    match verb {
        Verb::Restart => model.candidate().map(|candidate| candidate.version.clone()),
        Verb::Start | Verb::Stop => None,
    }
}

pub(super) async fn run(context: &mut Context<'_>, verb: Verb, arguments: &Lifecycle) -> Result<Exit, Failure> {
    let asked = ask(context, verb, arguments).await.map(|answer| (answer, None));
    show(context, &arguments.model, asked).await
}

/// Prints the model as it is after a request, and in a table what was done for it.
pub(super) async fn show(
    context: &mut Context<'_>,
    name: &ModelName,
    asked: Result<(Answer, Option<String>), Failure>,
) -> Result<Exit, Failure> {
    let (answer, done) = match asked {
        Ok(asked) => asked,
        Err(Failure::Client(error)) => return Err(refused(&context.client, name, error).await),
        Err(failure) => return Err(failure),
    };
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let model: Model = answer.value()?;
            let done = done.map(|done| format!(", {done}")).unwrap_or_default();
            context.out.line(format_args!("{name}: {}{done}", model.state.as_str()))?;
        }
    }
    Ok(Exit::Ok)
}

/// Sends the model on its way; with `--wait`, returns what it is at the end of it.
async fn ask(context: &Context<'_>, verb: Verb, arguments: &Lifecycle) -> Result<Answer, Failure> {
    let Lifecycle { model, wait, timeout } = arguments;
    let route = model_route(model, "");
    let patience = Patience::new(model, *timeout);
    if !wait {
        return Ok(context.client.post(&model_route(model, verb.route())).await?);
    }
    let before: Model = context.client.get(&route).await?.value()?;
    let before: Vec<String> = before.instances.into_iter().map(|instance| instance.id).collect();
    let mut answer = context.client.post(&model_route(model, verb.route())).await?;
    // The answer is of the model as it is after the order, so its candidate was given its next try by that.
    if let Some(version) = started_beside(verb, &answer.value()?) {
        let wait = Wait { model, version: &version, published: false, timeout: *timeout };
        return until_it_serves(context, &wait).await;
    }
    loop {
        let now: Model = answer.value()?;
        match progress(verb, &now, &before) {
            Progress::Done => return Ok(answer),
            Progress::Failed => {
                return Err(Failure::NotReady { model: model.clone(), reason: status::reason(&now) });
            }
            Progress::Underway => {}
        }
        patience.pause(now.state.as_str()).await?;
        answer = context.client.get(&route).await?;
    }
}

#[cfg(test)]
mod tests {
    use omni_control_api::Instance;

    use super::*;

    fn model(state: State, instances: &[&str]) -> Model {
        let instance = |id: &&str| Instance {
            id: (*id).to_owned(),
            version: String::new(),
            state: State::Ready,
            pid: None,
            age_seconds: 0.0,
            in_flight: 0,
            old_protocol: None,
        };
        Model { state, instances: instances.iter().map(instance).collect(), ..Model::unseen("m".to_owned()) }
    }

    #[test]
    fn each_verb_knows_its_end() {
        use Progress::{Done, Failed, Underway};
        // In the order of `State::ALL`: preparing, starting, ready, draining, stopped, failed.
        for (verb, expected) in [
            (Verb::Start, [Underway, Underway, Done, Underway, Underway, Failed]),
            (Verb::Stop, [Underway, Underway, Underway, Underway, Done, Done]),
            (Verb::Restart, [Underway, Underway, Done, Underway, Underway, Failed]),
        ] {
            for (state, expected) in State::ALL.into_iter().zip(expected) {
                assert_eq!(progress(verb, &model(state, &[]), &[]), expected, "{} {state:?}", verb.route());
            }
        }
    }

    #[test]
    fn a_restart_is_done_when_other_instances_are_ready() {
        let before = ["one".to_owned(), "two".to_owned()];
        for (instances, expected) in [
            (&["one", "two"][..], Progress::Underway),
            (&["two", "three"], Progress::Underway),
            (&["three"], Progress::Done),
        ] {
            assert_eq!(progress(Verb::Restart, &model(State::Ready, instances), &before), expected, "{instances:?}");
        }
        assert_eq!(progress(Verb::Start, &model(State::Ready, &["one"]), &before), Progress::Done);
    }
}
