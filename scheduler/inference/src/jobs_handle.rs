//! Handle of the store of batch jobs, which is opened beside everything else, and closed before a successor opens it.

use omni_jobs::{JobError, JobStore};
use omni_request_error::{Failure, InvalidCode, InvalidRequest};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait of a request for the store.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Advice to an owner that has too much under way at a time.
const RETRY_BUSY: Duration = Duration::from_secs(1);

/// State of the store.
#[derive(Debug, Clone)]
pub enum StoreState {
    /// Being opened.
    Opening,
    /// Open.
    Open(JobStore),
    /// Closed for this process, or not to be opened.
    Closed,
}

/// Counts of items, which the executor keeps.
#[derive(Debug, Default)]
pub struct JobCounts {
    /// Items with a response of success.
    pub completed: AtomicU64,
    /// Items with another response, or an error instead of one.
    pub failed: AtomicU64,
    /// Attempts whose instance died.
    pub died: AtomicU64,
    /// Attempts that were given back.
    pub given_back: AtomicU64,
    /// Items that wait.
    pub waiting: AtomicU64,
    /// Items in flight.
    pub in_flight: AtomicU64,
}

/// Handle of the store.
#[derive(Debug, Clone)]
pub struct JobsHandle {
    state: watch::Receiver<StoreState>,
    counts: Arc<JobCounts>,
}

impl JobsHandle {
    /// A handle of the store in this state.
    #[must_use]
    pub fn new(state: watch::Receiver<StoreState>, counts: Arc<JobCounts>) -> Self {
        Self { state, counts }
    }

    /// Counts of items.
    #[must_use]
    pub fn counts(&self) -> &JobCounts {
        &self.counts
    }

    /// The store, if it is open.
    #[must_use]
    pub fn opened(&self) -> Option<JobStore> {
        match &*self.state.borrow() {
            StoreState::Open(store) => Some(store.clone()),
            StoreState::Opening | StoreState::Closed => None,
        }
    }

    /// The store, once it is open.
    ///
    /// # Errors
    /// The store is closed, or is not opened in time.
    pub async fn store(&self) -> Result<JobStore, Failure> {
        let mut state = self.state.clone();
        let known = state.wait_for(|state| !matches!(state, StoreState::Opening));
        match tokio::time::timeout(OPEN_TIMEOUT, known).await {
            Ok(Ok(state)) => match &*state {
                StoreState::Open(store) => Ok(store.clone()),
                StoreState::Opening | StoreState::Closed => Err(Failure::JobsUnavailable),
            },
            Ok(Err(_)) | Err(_) => Err(Failure::JobsUnavailable),
        }
    }
}

/// Failure of a request by that of the store. `parameter`: the client's value that the store has refused.
pub(crate) fn failure(error: &JobError, parameter: &str) -> Failure {
    match error {
        JobError::NoFile => Failure::NoSuchJob("file"),
        JobError::NoBatch => Failure::NoSuchJob("batch"),
        JobError::Ended(_) | JobError::Purpose | JobError::TooLarge { .. } | JobError::Requests(_) => {
            InvalidRequest::new(parameter, error.to_string()).into()
        }
        JobError::DiskBound => {
            Failure::JobsFull("the node's space for batch jobs is used up: wait until files expire, or delete some")
        }
        // As OpenAI and Azure do: 400, which no client repeats. Waiting for a second or two makes no room.
        JobError::OwnerBound(what) => {
            let message = (*what).to_owned();
            InvalidRequest { message, parameter: None, code: InvalidCode::Quota }.into()
        }
        JobError::OwnerBusy(_) => Failure::TooManyRequests { retry_after: RETRY_BUSY },
        JobError::Closed => Failure::JobsUnavailable,
        JobError::Io { .. } | JobError::Database(_) | JobError::Unknown(_) => {
            tracing::error!("batch jobs: {}", omni_log::chain(error));
            Failure::JobsUnavailable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_store_name_the_parameter() {
        for (error, status) in [
            (JobError::NoFile, 404),
            (JobError::NoBatch, 404),
            (JobError::Ended("completed"), 400),
            (JobError::Requests(5), 400),
            (JobError::DiskBound, 507),
            (JobError::OwnerBound("x"), 400),
            (JobError::OwnerBusy("x"), 429),
            (JobError::Closed, 503),
        ] {
            let failure = failure(&error, "x");
            assert_eq!(failure.status(), status, "{failure}");
            if let Failure::InvalidRequest(invalid) = failure {
                let of_owner = matches!(error, JobError::OwnerBound(_));
                assert_eq!(invalid.parameter.as_deref(), (!of_owner).then_some("x"));
                assert_eq!(invalid.code == InvalidCode::Quota, of_owner);
            }
        }
    }
}
