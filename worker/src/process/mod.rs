//! `omni-worker`: serves one instance until it ends.
