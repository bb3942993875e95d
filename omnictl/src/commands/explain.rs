//! `omnictl explain`: why a model has as many instances as it has.

use omni_config::ModelName;
use omni_control_api::{Because, Budget, Explain};

use super::Context;
use super::status::{block, describe_stop, line};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::size;
use crate::output::{Format, Out};

pub(super) async fn run(context: &mut Context<'_>, name: &ModelName) -> Result<Exit, Failure> {
    let answer = context.ask(name, "/explain").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => describe(&mut context.out, &answer.value()?)?,
    }
    Ok(Exit::Ok)
}

fn describe(out: &mut Out<'_>, explain: &Explain) -> Result<(), Failure> {
    let Explain { min, max, concurrency, load, .. } = explain;
    line(out, "model", &explain.name)?;
    line(out, "state", explain.state.as_str())?;
    let starting = explain.instances.saturating_sub(explain.ready);
    line(
        out,
        "instances",
        format_args!("{} ready, {starting} starting or ending; {} wanted", explain.ready, explain.wanted),
    )?;
    line(out, "because", because(explain))?;
    line(out, "bounds", format_args!("{min} to {max} instances, {concurrency} requests at once on each"))?;
    line(
        out,
        "load",
        format_args!(
            "{load} requests now, {:.1} on average over {}s, at most {:.1} for as long within {}s",
            explain.average, explain.average_seconds, explain.greatest, explain.greatest_seconds
        ),
    )?;
    describe_stop(out, explain.last_stop.as_ref())?;
    let budgets = &explain.budgets;
    line(out, "memory", budget(&budgets.memory_bytes, size))?;
    line(out, "cpus", budget(&budgets.cpu_millis, |millis| format!("{:.1}", millis as f64 / 1000.0)))?;
    line(out, "processes", budget(&budgets.processes, |count| count.to_string()))?;
    block(out, "message", explain.message.as_deref().unwrap_or_default().lines())
}

fn because(explain: &Explain) -> String {
    match explain.because {
        Because::Min => "the load needs no more than `min-instances`".to_owned(),
        Because::Load => "the load of now needs them".to_owned(),
        Because::RecentLoad => format!("the load of the last {}s needed them", explain.greatest_seconds),
        Because::Max => "the load needs more than `max-instances`".to_owned(),
        Because::Held => "it was stopped by hand: `omnictl start` ends that".to_owned(),
    }
}

/// A budget: the limit of one instance, and the sum of all instances of the node.
fn budget(budget: &Budget, show: impl Fn(u64) -> String) -> String {
    let (instance, taken) = (show(budget.instance), show(budget.committed));
    let limit = budget.limit.map_or_else(|| "without a limit".to_owned(), |limit| format!("of {}", show(limit)));
    format!("{instance} for each instance; {taken} taken on the node, {limit}")
}
