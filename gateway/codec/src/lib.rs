//! Parts that the codecs of the APIs share.
//!
//! | module | contents |
//! | --- | --- |
//! | [`body`] | JSON bodies as typed values; errors name the parameter by its path |
//! | [`raw`] | JSON whose keys stay in their order |
//! | [`form`] | forms with files |
//! | [`bounds`] | checks of values |
//! | [`text_or`] | a text, or an array or object in its place |
//! | [`sampling`] | bounds of the parameters that all APIs of generated text have |
//! | [`openapi`] | operations with the schemas of their types |
//! | `failure` | responses of failures: status and headers |
//! | `other_api` | names of parameters in other APIs |
//! | [`event`] | server-sent events and JSON strings in a buffer |
#![forbid(unsafe_code)]

pub mod body;
pub mod bounds;
pub mod event;
mod failure;
pub mod form;
pub mod openapi;
mod other_api;
pub mod raw;
pub mod sampling;
pub mod text_or;

pub use failure::failure_response;
pub use raw::{Object, RawMembers};
pub use text_or::TextOr;
