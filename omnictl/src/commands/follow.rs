//! Following a version on its way into service: what `deploy` and `rollback` wait for, and a `restart` of a candidate.

use std::time::{Duration, Instant};

use omni_config::{ModelName, duration};
use omni_control_api::{Generation, Model, Role, State};

use super::{Context, refused};
use crate::client::{Answer, ClientError, NO_SUCH_MODEL, model_route};
use crate::failure::Failure;
use crate::human::{age, gist, printable};
use crate::output::note;

/// Interval of polls while waiting. The API reports states only when asked; asking costs the daemon microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Characters of a version that tell two apart.
const VERSION_WIDTH: usize = 12;
/// Characters of a reason in an error.
const REASON_WIDTH: usize = 200;

/// In the place of a state.
const NOT_SEEN: &str = "not seen by the node";

/// Which version, and for how long.
pub(super) struct Wait<'a> {
    pub(super) model: &'a ModelName,
    /// Digest of its content.
    pub(super) version: &'a str,
    /// True if it was published in the model's directory, where another one can take its place.
    pub(super) published: bool,
    pub(super) timeout: Duration,
}

/// How far a version is on its way.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Takes the traffic.
    Serves,
    /// No demand for the model: nothing starts by itself.
    Idle,
    /// The model was stopped by hand.
    Held,
    /// In this state.
    Underway(State),
    /// The node does not know of it yet.
    Unseen,
    /// Cannot serve, for this reason.
    Failed(String),
}

fn step(model: &Model, version: &str) -> Step {
    let Some(generation) = model.generation(version) else { return Step::Unseen };
    match (generation.role, generation.state) {
        (Role::Serving, State::Ready) => Step::Serves,
        (Role::Serving | Role::Candidate, State::Failed) => Step::Failed(reason(generation)),
        (Role::Serving | Role::Candidate, State::Stopped) if model.held => Step::Held,
        (Role::Serving, State::Stopped) => Step::Idle,
        (Role::Candidate, State::Ready | State::Stopped)
        | (Role::Serving | Role::Candidate, State::Preparing | State::Starting | State::Draining) => {
            Step::Underway(generation.state)
        }
        (Role::Previous, _) => Step::Unseen,
    }
}

fn reason(generation: &Generation) -> String {
    generation.message.clone().unwrap_or_else(|| "it does not say why".to_owned())
}

/// How long a command looks at a model again and again.
pub(super) struct Patience<'a> {
    model: &'a ModelName,
    limit: Duration,
    ends: Instant,
}

impl<'a> Patience<'a> {
    /// From now on.
    pub(super) fn new(model: &'a ModelName, limit: Duration) -> Self {
        Self { model, limit, ends: Instant::now() + limit }
    }

    /// Until it is time to look again; `state` is what was seen last. A failure when the time is over.
    pub(super) async fn pause(&self, state: &'static str) -> Result<(), Failure> {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let limit = duration::format(self.limit);
            return Err(Failure::TimedOut { model: self.model.clone(), state, limit });
        }
        tokio::time::sleep(LOOK_EVERY.min(left)).await;
        Ok(())
    }
}

/// Waits until the version serves; the model's state then.
pub(super) async fn until_it_serves(context: &Context<'_>, wait: &Wait<'_>) -> Result<Answer, Failure> {
    let route = model_route(wait.model, "");
    let patience = Patience::new(wait.model, wait.timeout);
    let (mut seen, mut started, mut told) = (false, false, None);
    loop {
        let answer = match context.client.get(&route).await {
            Ok(answer) => Some(answer),
            // A model is new to the node until it has looked.
            Err(ClientError::Refused(problem)) if wait.published && problem.kind == NO_SUCH_MODEL => None,
            Err(error) => return Err(refused(&context.client, wait.model, error).await),
        };
        let model = answer.as_ref().map(Answer::value::<Model>).transpose()?;
        let step = model.as_ref().map_or(Ok(Step::Unseen), |model| look(model, wait))?;
        let word = match (step, answer) {
            (Step::Serves, Some(answer)) => return Ok(answer),
            // Ready, and stopped again for lack of requests.
            (Step::Idle, Some(answer)) if started => return Ok(answer),
            (Step::Failed(reason), _) => return Err(failed(wait, model.as_ref(), &reason)),
            (Step::Held, _) => return Err(Failure::Held { model: wait.model.clone() }),
            (Step::Unseen, _) if seen => return Err(Failure::Replaced { model: wait.model.clone() }),
            (Step::Unseen, _) => NOT_SEEN,
            (Step::Idle | Step::Serves, _) => {
                // A model without demand is not proven either: start it once.
                context.client.post(&model_route(wait.model, "/start")).await?;
                started = true;
                State::Starting.as_str()
            }
            (Step::Underway(state), _) => state.as_str(),
        };
        seen |= word != NOT_SEEN;
        if told != Some(word) && seen {
            note(format_args!("{}: {word}", wait.model));
            told = Some(word);
        }
        patience.pause(word).await?;
    }
}

/// Where the version is, once the node has seen the directory.
fn look(model: &Model, wait: &Wait<'_>) -> Result<Step, Failure> {
    if wait.published {
        if model.directory.version.as_deref() != Some(wait.version) {
            return Ok(Step::Unseen);
        }
        if let Some(reason) = &model.directory.refused {
            return Ok(Step::Failed(reason.clone()));
        }
        if let Some(pinned) = model.pinned.as_deref().filter(|pinned| *pinned != wait.version) {
            return Err(Failure::Pinned { model: wait.model.clone(), to: short(pinned), version: short(wait.version) });
        }
    }
    Ok(step(model, wait.version))
}

/// Says all of the reason, which may be a traceback, and returns the failure with its gist.
fn failed(wait: &Wait<'_>, model: Option<&Model>, reason: &str) -> Failure {
    for line in reason.lines().filter(|_| reason.lines().count() > 1) {
        note(format_args!("  {}", printable(line)));
    }
    let generation = model.and_then(|model| model.generation(wait.version));
    let again = generation.and_then(|generation| generation.retry_in_seconds);
    let again = again.map(|seconds| format!("; it is tried again in {}", age(seconds))).unwrap_or_default();
    let serving = model.and_then(|model| model.version.as_deref()).filter(|version| *version != wait.version);
    Failure::NotServed {
        model: wait.model.clone(),
        version: short(wait.version),
        reason: format!("{}{again}", gist(reason, REASON_WIDTH)),
        serving: serving.map(short),
    }
}

/// As many digits of a version as people read.
pub(super) fn short(version: &str) -> String {
    version.chars().take(VERSION_WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use omni_control_api::Directory;

    use super::*;

    fn model(generations: &[(&str, Role, State)]) -> Model {
        let generation = |(version, role, state): &(&str, Role, State)| Generation {
            version: (*version).to_owned(),
            role: *role,
            state: *state,
            message: Some("why".to_owned()),
            retry_in_seconds: None,
            preparation: None,
            prepared: None,
        };
        Model {
            state: State::Ready,
            directory: Directory { version: Some("new".to_owned()), refused: None },
            generations: generations.iter().map(generation).collect(),
            ..Model::unseen("m".to_owned())
        }
    }

    #[test]
    fn a_version_serves_when_it_takes_the_traffic_and_is_ready() {
        use Step::{Failed, Idle, Serves, Underway, Unseen};
        let failed = || Failed("why".to_owned());
        // In the order of `State::ALL`: preparing, starting, ready, draining, stopped, failed.
        let [preparing, starting, ready, draining, stopped, _] = State::ALL.map(Underway);
        for (role, expected) in [
            (
                Role::Serving,
                [State::Preparing, State::Starting]
                    .map(Underway)
                    .into_iter()
                    .chain([Serves, Underway(State::Draining), Idle, failed()])
                    .collect::<Vec<_>>(),
            ),
            (Role::Candidate, vec![preparing, starting, ready, draining, stopped, failed()]),
            (Role::Previous, vec![Unseen, Unseen, Unseen, Unseen, Unseen, Unseen]),
        ] {
            for (state, expected) in State::ALL.into_iter().zip(expected) {
                assert_eq!(step(&model(&[("new", role, state)]), "new"), expected, "{role:?} {state:?}");
            }
        }
        assert_eq!(step(&model(&[("old", Role::Serving, State::Ready)]), "new"), Unseen);
        for role in [Role::Serving, Role::Candidate] {
            let held = Model { held: true, ..model(&[("new", role, State::Stopped)]) };
            assert_eq!(step(&held, "new"), Step::Held);
        }
    }

    #[test]
    fn a_published_version_is_looked_for_in_the_directory_first() {
        let name: ModelName = "m".parse().unwrap();
        let wait = |published| Wait { model: &name, version: "new", published, timeout: Duration::ZERO };
        let serves = model(&[("new", Role::Serving, State::Ready)]);
        let older = Model { directory: Directory::default(), ..serves.clone() };
        assert_eq!(look(&older, &wait(true)).unwrap(), Step::Unseen, "what it has been before does not count");
        assert_eq!(look(&older, &wait(false)).unwrap(), Step::Serves);
        let refused = Directory { refused: Some("no".to_owned()), ..serves.directory.clone() };
        assert_eq!(
            look(&Model { directory: refused, ..serves.clone() }, &wait(true)).unwrap(),
            Step::Failed("no".to_owned())
        );
        let pinned = Model { pinned: Some("old".to_owned()), ..serves };
        assert!(matches!(look(&pinned, &wait(true)), Err(Failure::Pinned { .. })));
    }
}
