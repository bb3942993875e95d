//! Responses: `/v1/responses`, without a store.

mod answer;
mod encoder;
mod item;
mod request;

pub use answer::{Response, ResponseEcho};
pub use encoder::ResponsesEncoder;
pub use request::{ResponsesRequest, responses_request};

#[cfg(test)]
mod tests;
