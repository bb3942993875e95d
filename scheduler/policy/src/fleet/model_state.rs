//! State of a model as its clients see it.

/// State of a model, or of a generation without instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// The environment is being built.
    Preparing,
    /// An instance is starting.
    Starting,
    /// An instance takes requests.
    Ready,
    /// The last instances finish their requests and stop.
    Draining,
    /// No instance; the next request starts one, unless the model is held.
    Stopped,
    /// Nothing can be started now.
    Failed,
}
