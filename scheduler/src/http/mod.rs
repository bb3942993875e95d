//! HTTP APIs: run API, admin listener, control API. Only this module knows status codes.

pub(crate) mod admin;
pub mod answer;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod data;
pub(crate) mod forward;
pub mod head;
mod in_flight;
mod openapi;
pub(crate) mod refusal;
pub(crate) mod run;
pub mod workers_ai;
