//! Modules, libraries, functions, kernels.

/// Code.
#[derive(Debug)]
pub(crate) struct Code {}
