//! `omnictl history`: the versions that a rollback can bring back.

use omni_config::ModelName;
use omni_control_api::{History, Role};

use super::Context;
use super::follow::short;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::moment;
use crate::output::{Format, note};
use crate::table::{Align, Table};

pub(super) async fn run(context: &mut Context<'_>, name: &ModelName) -> Result<Exit, Failure> {
    let answer = context.ask(name, "/history").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let history: History = answer.value()?;
            if history.versions.is_empty() {
                note(format_args!("{name}: no version of it was ready yet"));
            } else {
                context.out.text(table(&history))?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn table(history: &History) -> Table<3> {
    let mut table = Table::new([("VERSION", Align::Left), ("FIRST READY", Align::Left), ("ROLE", Align::Left)]);
    for version in &history.versions {
        table.row([
            short(&version.version),
            moment(version.first_ready_unix_ms),
            version.role.map(Role::as_str).unwrap_or_default().to_owned(),
        ]);
    }
    table
}
