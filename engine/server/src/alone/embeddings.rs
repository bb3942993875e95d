//! Vectors of texts.

use super::failure::{of_engine, too_long};
use super::prompt::{check_ids, encode};
use super::service::Service;
use crate::engine::{Event, Events, Submission, Work};
use bytes::Bytes;
use omni_generation::InvalidRequest;
use omni_openai::{EmbeddingRequest, Input, embedding_answer};
use omni_request_error::Failure;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most inputs of a request that the engine has at a time.
const AT_ONCE: usize = 16;

/// Answers a request for embeddings.
///
/// # Errors
/// The model makes none, an input has no room, or too many requests wait.
pub(super) async fn embed(service: &Arc<Service>, request: EmbeddingRequest) -> Result<Bytes, Failure> {
    let width = check(service, &request)?;
    let request = Arc::new(request);
    let (longest, work) = (service.facts.longest, Arc::clone(&request));
    let inputs = service.aside(move |text| {
        let tokens = |(index, input): (usize, &Input)| {
            let parameter = format!("input[{index}]");
            let tokens = match input {
                Input::Text(input) => encode(text, input, true, &[], &parameter)?,
                Input::Tokens(tokens) => tokens.clone(),
            };
            check_ids(text, &tokens, &parameter)?;
            if tokens.len() > longest {
                return Err(too_long(tokens.len(), 0, longest));
            }
            Ok(Arc::<[u32]>::from(tokens))
        };
        work.inputs.iter().enumerate().map(tokens).collect::<Result<Vec<_>, _>>()
    });
    let inputs = inputs.await?;
    let tokens: usize = inputs.iter().map(|tokens| tokens.len()).sum();
    let mut numbers = Vec::with_capacity(inputs.len().saturating_mul(width).saturating_mul(size_of::<f32>()));
    let mut running = VecDeque::with_capacity(AT_ONCE);
    for prompt in inputs {
        if running.len() == AT_ONCE {
            take(running.pop_front(), width, &mut numbers).await?;
        }
        let root = service.facts.root;
        let submission = Submission { prompt, work: Work::Embed, priority: 0, deadline: None, root };
        running.push_back(service.engine.submit(submission).map_err(of_engine)?);
    }
    while !running.is_empty() {
        take(running.pop_front(), width, &mut numbers).await?;
    }
    Ok(embedding_answer(&request, &numbers, width, tokens as u64))
}

/// Width of the vectors, if the request can be honoured.
fn check(service: &Service, request: &EmbeddingRequest) -> Result<usize, Failure> {
    if request.model != service.facts.name {
        return Err(Failure::NoSuchModel);
    }
    let Some(width) = service.facts.embeds else {
        return Err(InvalidRequest::unsupported("model", "this model makes text, and no embeddings").into());
    };
    match request.dimensions {
        Some(dimensions) if dimensions as usize != width => {
            let why = format!("`dimensions` is {dimensions}: the vectors of this model have {width}");
            Err(InvalidRequest::unsupported("dimensions", why).into())
        }
        _ => Ok(width),
    }
}

/// Waits for a vector.
async fn take(events: Option<Events>, width: usize, numbers: &mut Vec<u8>) -> Result<(), Failure> {
    let Some(mut events) = events else { return Ok(()) };
    while let Some(event) = events.recv().await {
        match event {
            Event::Embedding(vector) if vector.len() == width => {
                numbers.extend(vector.iter().flat_map(|number| number.to_le_bytes()));
                return Ok(());
            }
            Event::Failed(failure) => return Err(of_engine(failure)),
            Event::Embedding(_) | Event::Prompt(_) | Event::Token { .. } | Event::Finished { .. } | Event::Ended(_) => {
            }
        }
    }
    Err(Failure::Died)
}
