//! Control groups of instances.
