//! `omnictl rollback`: an earlier version takes the traffic again.

use omni_control_api::Model;

use super::follow::{Wait, short, until_it_serves};
use super::{Context, refused};
use crate::cli::Rollback;
use crate::client::model_route;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

pub(super) async fn run(context: &mut Context<'_>, arguments: &Rollback) -> Result<Exit, Failure> {
    let Rollback { model: name, to, wait, timeout } = arguments;
    let to = to.as_ref().map(|to| format!("?to={to}")).unwrap_or_default();
    let mut answer = match context.client.post(&model_route(name, &format!("/rollback{to}"))).await {
        Ok(answer) => answer,
        Err(error) => return Err(refused(&context.client, name, error).await),
    };
    let model: Model = answer.value()?;
    // The chosen version is on its way, or took the traffic at once.
    let chosen = model.candidate().map(|candidate| candidate.version.clone()).or(model.version).unwrap_or_default();
    if *wait {
        let wait = Wait { model: name, version: &chosen, published: false, timeout: *timeout };
        answer = until_it_serves(context, &wait).await?;
    }
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let state = answer.value::<Model>()?.generation(&chosen).map_or("unknown", |it| it.state.as_str());
            context.out.line(format_args!("{name}: version {} is {state}", short(&chosen)))?;
        }
    }
    Ok(Exit::Ok)
}
