//! `omnictl stack`: where the threads of a model's instances are.

use http_body_util::BodyExt;
use hyper::Method;
use omni_config::ModelName;

use super::{Context, logs, refused};
use crate::client::{ClientError, empty, model_route, request};
use crate::exit::Exit;
use crate::failure::Failure;

pub(super) async fn run(context: &mut Context<'_>, model: &ModelName) -> Result<Exit, Failure> {
    let route = model_route(model, "/stack");
    let answer = match context.client.send(request(Method::POST, &route, empty())).await {
        Ok(answer) => answer.into_body().collect().await.map_err(ClientError::Broken)?.to_bytes(),
        Err(error) => return Err(refused(&context.client, model, error).await),
    };
    for line in answer.split(|byte| *byte == b'\n') {
        logs::print(&mut context.out, context.format, &route, line)?;
    }
    Ok(Exit::Ok)
}
