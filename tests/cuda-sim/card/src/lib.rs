//! The simulated card: a file that all processes share; made, changed and read by tests.
