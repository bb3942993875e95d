//! `omnictl status`: how the node is, or how and why one model is.

use std::fmt::Display;

use omni_config::ModelName;
use omni_control_api::{Gpus, Instance, Model, Models, Node, State, Stop};

use super::Context;
use super::follow::short;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{age, gist, moment, printable, size};
use crate::output::{Format, Out};

/// Width of the labels, the space behind them included.
const LABEL_WIDTH: usize = 11;

pub(super) async fn node(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let answer = context.client.get("/v1/node").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let models = context.client.get("/v1/models").await?;
            describe_node(&mut context.out, &answer.value()?, &models.value::<Models>()?.models)?;
            let gpus = context.client.get("/v1/gpus").await?;
            describe_gpus(&mut context.out, &gpus.value()?)?;
        }
    }
    Ok(Exit::Ok)
}

fn describe_node(out: &mut Out<'_>, node: &Node, models: &[Model]) -> Result<(), Failure> {
    line(
        out,
        "daemon",
        format_args!("omni-scheduler {}, pid {}, up {}", node.version, node.pid, age(node.uptime_seconds)),
    )?;
    line(out, "listens", format_args!("{} for requests, {} for metrics and health", node.listen, node.admin_listen))?;
    block(out, "warning", node.warnings.iter().map(String::as_str))?;
    let launcher = match (node.launcher_connected, node.launcher_old_protocol) {
        (false, _) => "not connected: nothing can be started".to_owned(),
        (true, None) => "connected".to_owned(),
        (true, Some(protocol)) => format!("connected, of an earlier release (protocol {protocol})"),
    };
    line(out, "launcher", launcher)?;
    let is_old = |model: &&Model| model.instances.iter().any(|instance| instance.old_protocol.is_some());
    let old: Vec<&str> = models.iter().filter(is_old).map(|model| model.name.as_str()).collect();
    if !old.is_empty() {
        line(
            out,
            "workers",
            format_args!("of an earlier release: {}; `omnictl restart` replaces them", old.join(", ")),
        )?;
    }
    let (held, limit) = (size(node.buffered_bytes), size(node.buffered_bytes_limit));
    line(out, "bodies", format_args!("{held} of {limit} held in memory"))?;
    let counted: Vec<String> = State::ALL
        .into_iter()
        .map(|state| (state, models.iter().filter(|model| model.state == state).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.as_str()))
        .collect();
    let models = if counted.is_empty() { "none".to_owned() } else { counted.join(", ") };
    line(out, "models", models)?;
    match &node.single_model {
        None => Ok(()),
        Some(single) => {
            line(out, "single", format_args!("{single} alone, from {}, which is not watched", node.models_dir))
        }
    }
}

/// A line for each card; without one, why.
fn describe_gpus(out: &mut Out<'_>, gpus: &Gpus) -> Result<(), Failure> {
    let cards = gpus.gpus.iter().map(|gpu| {
        let (resident, budget, committed) =
            (size(gpu.resident_bytes), size(gpu.budget_bytes), size(gpu.committed_bytes));
        format!("{}: {}, {resident} of {budget} resident, {committed} committed", gpu.index, gpu.name)
    });
    let none = if gpus.gpus.is_empty() { "none: " } else { "" };
    let message = gpus.message.as_ref().map(|message| format!("{none}{message}"));
    let lines: Vec<String> = cards.chain(message).collect();
    block(out, "gpus", lines.iter().map(String::as_str))
}

pub(super) async fn model(context: &mut Context<'_>, name: &ModelName) -> Result<Exit, Failure> {
    let answer = context.ask(name, "").await?;
    let model: Model = answer.value()?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            // Only an instance can have a place on a card.
            let gpus = match model.instances.is_empty() {
                false => Some(context.client.get("/v1/gpus").await?),
                true => None,
            };
            let gpus = gpus.map(|answer| answer.value::<Gpus>()).transpose()?;
            describe_model(&mut context.out, &model, gpus.as_ref())?;
        }
    }
    Ok(if serves(&model) { Exit::Ok } else { Exit::NotReady })
}

/// Returns true if a request now would find a process, or start one.
fn serves(model: &Model) -> bool {
    match model.state {
        State::Ready => true,
        State::Stopped => !model.held,
        State::Preparing | State::Starting | State::Draining | State::Failed => false,
    }
}

fn describe_model(out: &mut Out<'_>, model: &Model, gpus: Option<&Gpus>) -> Result<(), Failure> {
    line(out, "model", &model.name)?;
    let held = if model.held { " (by hand: `omnictl start` ends that)" } else { "" };
    line(out, "state", format_args!("{}{held}", model.state.as_str()))?;
    let version = model.version.as_deref().map(short);
    line(out, "version", version.unwrap_or_else(|| "none: there is nothing that can serve".to_owned()))?;
    if let Some(pinned) = &model.pinned {
        line(out, "pinned", format_args!("to {} by a rollback, until its directory changes", short(pinned)))?;
    }
    if let Some(refused) = &model.directory.refused {
        let lines = refused.lines().map(|text| format!("refused: {text}"));
        block(out, "directory", lines.collect::<Vec<_>>().iter().map(String::as_str))?;
    }
    describe_instances(out, model, gpus)?;
    let Model { in_flight, queued, queue_limit, .. } = model;
    line(out, "requests", format_args!("{in_flight} running, {queued} of {queue_limit} queued"))?;
    line(out, "restarts", model.restarts)?;
    if let Some(exit) = &model.last_exit {
        line(out, "last exit", exit)?;
    }
    describe_stop(out, model.last_stop.as_ref())?;
    if let Some(seconds) = model.retry_in_seconds {
        line(out, "next try", format_args!("in {}", age(seconds)))?;
    }
    if let Some(message) = &model.message {
        block(out, "message", message.lines())?;
    }
    if let Some(candidate) = model.candidate() {
        let again = candidate.retry_in_seconds.map(|seconds| format!(", next try in {}", age(seconds)));
        let state = candidate.state.as_str();
        line(out, "candidate", format_args!("{}, {state}{}", short(&candidate.version), again.unwrap_or_default()))?;
        block(out, "", candidate.message.as_deref().unwrap_or_default().lines())?;
    }
    block(out, "build log", model.build_log.iter().map(String::as_str))
}

/// Why the last instance that did well was stopped.
pub(super) fn describe_stop(out: &mut Out<'_>, stop: Option<&Stop>) -> Result<(), Failure> {
    let Some(Stop { reason, message, unix_ms }) = stop else { return Ok(()) };
    line(out, "last stop", format_args!("{}, {}: {message}", moment(*unix_ms), reason.as_str()))
}

/// A line for each instance, and one for its GPU memory.
fn describe_instances(out: &mut Out<'_>, model: &Model, gpus: Option<&Gpus>) -> Result<(), Failure> {
    for instance in &model.instances {
        let pid = instance.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        let (id, up) = (&instance.id, age(instance.age_seconds));
        // Shown only where the model's own lines do not say it already.
        let state = if instance.state == model.state { "" } else { instance.state.as_str() };
        let other = Some(&instance.version) != model.version.as_ref();
        let version = if other { format!("version {}", short(&instance.version)) } else { String::new() };
        let old = instance.old_protocol.map(|protocol| format!("of an earlier release (protocol {protocol})"));
        let old = old.unwrap_or_default();
        let more: Vec<&str> = [state, &version, &old].into_iter().filter(|word| !word.is_empty()).collect();
        let more = if more.is_empty() { String::new() } else { format!(", {}", more.join(", ")) };
        line(out, "instance", format_args!("{id}{pid}, up {up}, {} running{more}", instance.in_flight))?;
        if let Some(place) = gpus.and_then(|gpus| place(gpus, instance)) {
            line(out, "gpu", place)?;
        }
    }
    Ok(())
}

/// Where an instance's GPU memory is; `None` for one without a GPU.
fn place(gpus: &Gpus, instance: &Instance) -> Option<String> {
    let id = &instance.id;
    let mut all = gpus.gpus.iter().flat_map(|gpu| gpu.instances.iter().map(|instance| (gpu.index, instance)));
    let (index, instance) = all.find(|(_, instance)| instance.instance == *id)?;
    let (allocated, limit) = (size(instance.allocated_bytes), size(instance.limit_bytes));
    let resident = size(instance.resident_bytes);
    Some(format!("{index}: {}, {allocated} of {limit} allocated, {resident} on the card", instance.residency.as_str()))
}

/// A label and its text. Texts come from models and their builds too: each is one harmless line.
pub(super) fn line(out: &mut Out<'_>, label: &str, text: impl Display) -> Result<(), Failure> {
    out.line(format_args!("{label:<LABEL_WIDTH$}{}", printable(&format!("{text}"))))
}

/// A label and a text of any number of lines; nothing for none.
pub(super) fn block<'a>(out: &mut Out<'_>, label: &str, lines: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let mut label = label;
    for text in lines {
        line(out, label, text)?;
        label = "";
    }
    Ok(())
}

/// Why a model is in its state, in one line, for an error.
pub(super) fn reason(model: &Model) -> String {
    let told = model.message.as_deref().or(model.last_exit.as_deref()).unwrap_or("it does not say why");
    gist(told, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_serves_when_a_request_would_be_answered() {
        let model = |state, held| Model { state, held, ..Model::unseen("m".to_owned()) };
        for state in State::ALL {
            assert_eq!(serves(&model(state, false)), matches!(state, State::Ready | State::Stopped), "{state:?}");
        }
        assert!(!serves(&model(State::Stopped, true)));
    }
}
