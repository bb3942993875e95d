//! Work whose time an author or a client decides, on a thread of its own: one piece at a time for each content, so that those of
//! one model leave threads to the others.

use omni_request_error::Failure;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Permit of the only piece of work at a time.
#[derive(Debug, Clone)]
pub(crate) struct Aside(Arc<Semaphore>);

impl Aside {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Runs the work once the earlier work of the content has ended.
    ///
    /// # Errors
    /// The work has panicked.
    pub(crate) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
        let permit = self.0.acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| Failure::Raised)
    }
}
