//! `omnictl wait`: until a model is ready, or stopped.

use std::time::{Duration, Instant};

use omni_api::{Model, State};
use omni_config::{ModelName, duration};

use super::follow::LOOK_EVERY;
use super::{Context, refused, status};
use crate::cli::WaitFor;
use crate::client::model_route;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

/// Whether it is what is waited for; `None` while it can still become that.
fn reached(wanted: WaitFor, model: &Model) -> Option<bool> {
    match (wanted, model.state) {
        (WaitFor::Ready, State::Ready) | (WaitFor::Stopped, State::Stopped | State::Failed) => Some(true),
        (WaitFor::Ready, State::Failed) if model.retry_in_seconds.is_none() => Some(false),
        (WaitFor::Ready, State::Preparing | State::Starting | State::Draining | State::Stopped | State::Failed)
        | (WaitFor::Stopped, State::Preparing | State::Starting | State::Ready | State::Draining) => None,
    }
}

pub(super) async fn run(
    context: &mut Context<'_>,
    name: &ModelName,
    wanted: WaitFor,
    timeout: Duration,
) -> Result<Exit, Failure> {
    let deadline = Instant::now() + timeout;
    loop {
        let answer = match context.client.get(&model_route(name, "")).await {
            Ok(answer) => answer,
            Err(error) => return Err(refused(&context.client, name, error).await),
        };
        let model: Model = answer.value()?;
        match reached(wanted, &model) {
            Some(true) => {
                match context.format {
                    Format::Json => context.out.json(answer.json()?)?,
                    Format::Table => context.out.line(format_args!("{name}: {}", model.state.as_str()))?,
                }
                return Ok(Exit::Ok);
            }
            Some(false) => return Err(Failure::NotReady { model: name.clone(), reason: status::reason(&model) }),
            None => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let limit = duration::format(timeout);
            return Err(Failure::TimedOut { model: name.clone(), state: model.state.as_str(), limit });
        }
        tokio::time::sleep(LOOK_EVERY.min(left)).await;
    }
}
