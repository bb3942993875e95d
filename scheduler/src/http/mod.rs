//! HTTP: the listeners and what they answer. Only this module knows status codes.

mod addresses;
pub mod admin;
pub mod answer;
pub mod body;
mod connection;
pub mod control;
pub mod conversation;
pub mod data;
pub mod door;
pub mod failure;
mod forward;
mod frames;
pub mod head;
mod head_timer;
mod hold;
pub mod listener;
mod model_headers;
pub mod openapi;
pub mod origin;
pub mod run;
pub mod splice;
pub mod stream;
pub mod upload;
