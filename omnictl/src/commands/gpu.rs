//! `omnictl gpu`: the cards, and the models on them.

use omni_control_api::Gpus;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{age, printable, size};
use crate::output::{Format, note};
use crate::table::{Align, Table};

pub(super) async fn run(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let answer = context.client.get("/v1/gpus").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let gpus = answer.value::<Gpus>()?;
            if !gpus.gpus.is_empty() {
                context.out.text(cards(&gpus))?;
            }
            if gpus.gpus.iter().any(|gpu| !gpu.instances.is_empty()) {
                context.out.text(format_args!("\n{}", instances(&gpus)))?;
                let (needed, budget) = (size(gpus.host_committed_bytes), size(gpus.host_budget_bytes));
                context.out.text(format_args!("\nhost memory for what is evicted: {needed} of {budget}\n"))?;
            }
            if let Some(message) = &gpus.message {
                let none = if gpus.gpus.is_empty() { "no GPU for models: " } else { "" };
                note(format_args!("{none}{}", printable(message)));
            }
        }
    }
    Ok(Exit::Ok)
}

fn cards(gpus: &Gpus) -> Table<8> {
    let mut table = Table::new([
        ("GPU", Align::Left),
        ("NAME", Align::Left),
        ("USED", Align::Right),
        ("TOTAL", Align::Right),
        ("RESIDENT", Align::Right),
        ("BUDGET", Align::Right),
        ("COMMITTED", Align::Right),
        ("LIMIT", Align::Right),
    ]);
    for gpu in &gpus.gpus {
        table.row([
            gpu.index.to_string(),
            gpu.name.clone(),
            size(gpu.used_bytes),
            size(gpu.total_bytes),
            size(gpu.resident_bytes),
            size(gpu.budget_bytes),
            size(gpu.committed_bytes),
            size(gpu.commit_limit_bytes),
        ]);
    }
    table
}

fn instances(gpus: &Gpus) -> Table<8> {
    let mut table = Table::new([
        ("MODEL", Align::Left),
        ("INSTANCE", Align::Left),
        ("GPU", Align::Left),
        ("RESIDENCY", Align::Left),
        ("RESIDENT", Align::Right),
        ("ALLOCATED", Align::Right),
        ("LIMIT", Align::Right),
        ("IDLE", Align::Right),
    ]);
    for gpu in &gpus.gpus {
        for instance in &gpu.instances {
            table.row([
                instance.model.clone(),
                instance.instance.clone(),
                gpu.index.to_string(),
                instance.residency.as_str().to_owned(),
                size(instance.resident_bytes),
                size(instance.allocated_bytes),
                size(instance.limit_bytes),
                instance.idle_seconds.map(age).unwrap_or_default(),
            ]);
        }
    }
    table
}
