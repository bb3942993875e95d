//! `omnictl list`: all models with their state.

use omni_config::Foreign;
use omni_control_api::{Model, Models, NotServed, State};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{age, gist};
use crate::output::{Format, note};
use crate::table::{Align, Table};

/// Characters of a message in a note.
const NOTE_WIDTH: usize = 60;

pub(super) async fn run(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let answer = context.client.get("/v1/models").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let Models { models, not_served } = answer.value()?;
            if models.is_empty() && not_served.is_empty() {
                note("no models: put a directory with a model.py into the node's models folder");
            } else {
                context.out.text(table(&models, &not_served))?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn table(models: &[Model], not_served: &[NotServed]) -> Table<8> {
    let mut table = Table::new([
        ("MODEL", Align::Left),
        ("STATE", Align::Left),
        ("INSTANCES", Align::Right),
        ("AGE", Align::Right),
        ("RUNNING", Align::Right),
        ("QUEUED", Align::Right),
        ("RESTARTS", Align::Right),
        ("NOTE", Align::Left),
    ]);
    for model in models {
        table.row([
            model.name.clone(),
            model.state.as_str().to_owned(),
            model.instances.len().to_string(),
            model.instances.first().map(|oldest| age(oldest.age_seconds)).unwrap_or_default(),
            model.in_flight.to_string(),
            model.queued.to_string(),
            model.restarts.to_string(),
            remark(model),
        ]);
    }
    for NotServed { directory, reason } in not_served {
        let (name, why) = (Foreign(directory).to_string(), Foreign(reason).to_string());
        let nothing = || String::new();
        table.row([name, "not served".to_owned(), nothing(), nothing(), nothing(), nothing(), nothing(), why]);
    }
    table
}

/// A remark about a model beyond its state.
fn remark(model: &Model) -> String {
    let message = gist(model.message.as_deref().unwrap_or_default(), NOTE_WIDTH);
    if let Some(candidate) = model.candidate().filter(|_| !model.held && message.is_empty()) {
        let why = candidate.message.as_deref().map(|why| format!(": {}", gist(why, NOTE_WIDTH))).unwrap_or_default();
        return format!("new version {}{why}", candidate.state.as_str());
    }
    if let Some(refused) = model.directory.refused.as_deref().filter(|_| message.is_empty()) {
        return format!("new content refused: {}", gist(refused, NOTE_WIDTH));
    }
    match (model.held, model.retry_in_seconds, model.build_log.last()) {
        (true, _, _) if message.is_empty() => "stopped by hand".to_owned(),
        (false, Some(seconds), _) => format!("next try in {}: {message}", age(seconds)),
        (false, None, Some(line)) if message.is_empty() => gist(line, NOTE_WIDTH),
        (false, None, None) if message.is_empty() && model.state == State::Stopped => {
            model.last_stop.as_ref().map(|stop| gist(&stop.message, NOTE_WIDTH)).unwrap_or_default()
        }
        _ => message,
    }
}
