//! HTTP: the listeners and what they answer. Only this module knows status codes.

pub mod admin;
pub mod answer;
pub mod control;
pub mod data;
mod forward;
pub mod head;
pub mod openapi;
pub mod run;
pub mod workers_ai;
