//! `omnictl jobs`: batches of all owners, one of them, its cancellation.

use omni_control_api::{Job, Jobs};

use super::Context;
use crate::cli::JobsCommand;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{moment, printable, size};
use crate::output::{Format, note};
use crate::table::{Align, Table};

pub(super) async fn run(context: &mut Context<'_>, command: Option<JobsCommand>) -> Result<Exit, Failure> {
    let answer = match &command {
        None => context.client.get("/v1/jobs").await?,
        Some(JobsCommand::Show { id }) => context.client.get(&route(id, "")).await?,
        Some(JobsCommand::Cancel { id }) => context.client.post(&route(id, "/cancel")).await?,
    };
    match (context.format, command) {
        (Format::Json, _) => context.out.json(answer.json()?)?,
        (Format::Table, None) => {
            let jobs: Jobs = answer.value()?;
            context.out.text(list(&jobs.jobs))?;
            note(format_args!("{} of {} on the disk", size(jobs.disk_bytes), size(jobs.disk_bytes_limit)));
        }
        (Format::Table, Some(_)) => {
            let job: Job = answer.value()?;
            context.out.text(list(std::slice::from_ref(&job)))?;
            job.errors.iter().chain(&job.waits).for_each(|reason| note(format_args!("{}", printable(reason))));
        }
    }
    Ok(Exit::Ok)
}

/// The route of a batch. Characters that no identifier has are left out.
fn route(id: &str, rest: &str) -> String {
    let id: String =
        id.chars().filter(|character| character.is_ascii_alphanumeric() || "_-".contains(*character)).collect();
    format!("/v1/jobs/{id}{rest}")
}

fn list(jobs: &[Job]) -> Table<8> {
    let mut table = Table::new([
        ("ID", Align::Left),
        ("OWNER", Align::Left),
        ("MODEL", Align::Left),
        ("STATUS", Align::Left),
        ("REQUESTS", Align::Right),
        ("COMPLETED", Align::Right),
        ("FAILED", Align::Right),
        ("CREATED", Align::Left),
    ]);
    for job in jobs {
        table.row([
            job.id.clone(),
            job.owner.clone(),
            job.model.clone().unwrap_or_default(),
            job.status.clone(),
            job.total.to_string(),
            job.completed.to_string(),
            job.failed.to_string(),
            moment(job.created_unix_ms),
        ]);
    }
    table
}

#[test]
fn routes_have_identifiers_alone() {
    assert_eq!(route("batch_0a", "/cancel"), "/v1/jobs/batch_0a/cancel");
    assert_eq!(route("../node", ""), "/v1/jobs/node");
}
