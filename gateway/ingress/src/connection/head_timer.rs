//! Timer for the head of a request, shared by all requests of an HTTP/1.1 connection.
//!
//! Hyper sets a deadline before each request and drops it as soon as the head has arrived: at many requests a second that is mostly the
//! registration of timers that never expire. Here a connection has one timer. Invariant: it never expires later than the deadline that
//! was asked for; when it expires too early, it is set again.

use hyper::rt::{Sleep, Timer};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

type Running = Pin<Box<tokio::time::Sleep>>;

/// Timer of one connection, while no deadline uses it.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadTimer(Arc<Mutex<Option<Running>>>);

/// Deadline that uses the timer.
#[derive(Debug)]
struct Deadline {
    at: Instant,
    /// `None` once it is dropped.
    running: Option<Running>,
    timer: HeadTimer,
}

impl HeadTimer {
    fn spare(&self, change: impl FnOnce(&mut Option<Running>) -> Option<Running>) -> Option<Running> {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Sleep>> {
        let earlier = self.spare(Option::take).filter(|running| running.deadline() <= at.into());
        let running = earlier.unwrap_or_else(|| Box::pin(tokio::time::sleep_until(at.into())));
        Box::pin(Deadline { at, running: Some(running), timer: self.clone() })
    }
}

impl Sleep for Deadline {}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let at = self.at.into();
        let Some(running) = &mut self.running else { return Poll::Ready(()) };
        while running.deadline() < at {
            ready!(running.as_mut().poll(context));
            running.as_mut().reset(at);
        }
        running.as_mut().poll(context)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.timer.spare(|spare| std::mem::replace(spare, self.running.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn all_deadlines_share_one_timer() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        let first = timer.sleep_until((start + TIMEOUT).into_std());
        tokio::time::timeout(Duration::from_secs(20), first).await.unwrap_err();
        assert_eq!(timer.spare(Option::take).map(|running| running.deadline()), Some(start + TIMEOUT));

        for begins in [25, 60, 61] {
            tokio::time::sleep_until(start + Duration::from_secs(begins)).await;
            let begun = tokio::time::Instant::now();
            drop(timer.sleep_until((begun + TIMEOUT).into_std())); // a head that arrives at once
            timer.sleep_until((begun + TIMEOUT).into_std()).await;
            assert_eq!(begun.elapsed(), TIMEOUT, "{begins}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_before_the_last_one_is_kept() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        drop(timer.sleep_until((start + TIMEOUT).into_std()));
        timer.sleep_until((start + TIMEOUT / 2).into_std()).await;
        assert_eq!(start.elapsed(), TIMEOUT / 2);
    }
}
