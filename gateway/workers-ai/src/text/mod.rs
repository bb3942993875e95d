//! Text generation in the native form of the Workers AI API.

mod encoder;
mod request;

pub use encoder::{NativeEncoder, TextAnswer};
pub use request::{TextRequest, text_request};

#[cfg(test)]
mod tests;
