//! HTTP: the listeners and what they answer. Only this module knows status codes.

pub mod admin;
pub mod answer;
pub mod body;
mod connection;
pub mod control;
pub mod data;
pub mod failure;
mod forward;
pub mod head;
mod head_timer;
mod hold;
pub mod listener;
pub mod openapi;
pub mod run;
pub mod splice;
pub mod stream;
pub mod upload;
