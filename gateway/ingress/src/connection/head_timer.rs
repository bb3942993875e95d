//! Hyper's deadline for the head of a request, without a new timer for each request.
//!
//! Given to hyper by [`super::listener`], one for each connection of HTTP/1.1. Hyper asks for a deadline before each request
//! and drops it as soon as the head is there, which at many requests a second is mostly setting timers that never go off.
//! Here a connection has one timer. What always holds: it is never set to later than the deadline that is asked for; when it
//! goes off too early, it is set anew.

use hyper::rt::{Sleep, Timer};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

type Running = Pin<Box<tokio::time::Sleep>>;

/// The timer of one connection, while no deadline has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadTimer(Arc<Mutex<Option<Running>>>);

/// A deadline.
#[derive(Debug)]
struct Deadline {
    at: Instant,
    /// `None` once it is dropped.
    running: Option<Running>,
    timer: HeadTimer,
}

impl HeadTimer {
    fn rests(&self, change: impl FnOnce(&mut Option<Running>) -> Option<Running>) -> Option<Running> {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Sleep>> {
        let earlier = self.rests(Option::take).filter(|running| running.deadline() <= at.into());
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
        self.timer.rests(|rests| std::mem::replace(rests, self.running.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn each_deadline_is_kept_and_all_share_one_timer() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        let first = timer.sleep_until((start + TIMEOUT).into_std());
        tokio::time::timeout(Duration::from_secs(20), first).await.unwrap_err();
        assert_eq!(timer.rests(Option::take).map(|running| running.deadline()), Some(start + TIMEOUT));

        for begins in [25, 60, 61] {
            tokio::time::sleep_until(start + Duration::from_secs(begins)).await;
            let begun = tokio::time::Instant::now();
            drop(timer.sleep_until((begun + TIMEOUT).into_std())); // a head that came at once
            timer.sleep_until((begun + TIMEOUT).into_std()).await;
            assert_eq!(begun.elapsed(), TIMEOUT, "{begins}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_than_the_last_one_is_kept() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        drop(timer.sleep_until((start + TIMEOUT).into_std()));
        timer.sleep_until((start + TIMEOUT / 2).into_std()).await;
        assert_eq!(start.elapsed(), TIMEOUT / 2);
    }
}
