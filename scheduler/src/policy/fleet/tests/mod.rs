//! Tables for each rule, and generated worlds.
