//! Tables for each rule, and generated worlds in which everything goes wrong.

mod properties;
mod world;

use super::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings { min: 0, max: 1, idle_timeout: 600 * SECOND, startup: 120 * SECOND, drain: 30 * SECOND }
}
