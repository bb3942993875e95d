//! Timer with the kernel's resolution. Those of the runtime have milliseconds, and expire up to two of them late.

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

/// Timer that wakes one task. The default has no descriptor until it is first set.
#[derive(Debug, Default)]
pub struct FineTimer {
    descriptors: Option<Descriptors>,
}

/// Two descriptors of one timer.
#[derive(Debug)]
struct Descriptors {
    timer: TimerFd,
    /// The runtime reads the timer's expirations as it reads a pipe: eight bytes at a time.
    expirations: Receiver,
}

impl Descriptors {
    fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let expirations = Receiver::from_owned_fd_unchecked(timer.as_fd().try_clone_to_owned()?)?;
        Ok(Self { timer, expirations })
    }
}

impl FineTimer {
    /// Has the timer expire after this time, once; an earlier setting is replaced.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn set(&mut self, after: Duration) -> io::Result<()> {
        let Descriptors { timer, .. } = match &mut self.descriptors {
            Some(descriptors) => descriptors,
            none @ None => none.insert(Descriptors::new()?),
        };
        let after = TimeSpec::from_duration(after.max(Duration::from_nanos(1))); // 0 would disarm it
        timer.set(Expiration::OneShot(after), TimerSetTimeFlags::empty()).map_err(Errno::into)
    }

    /// Waits until the timer expires; forever while it is not set.
    pub async fn expired(&self) {
        let Some(Descriptors { expirations, .. }) = &self.descriptors else { return pending().await };
        loop {
            // An error of the reactor is final: the task would be woken again and again.
            if expirations.readable().await.is_err() {
                return pending().await;
            }
            if expirations.try_read(&mut [0; 8]).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn it_expires_once_for_each_setting() {
        let mut timer = FineTimer::default();
        let patience = Duration::from_millis(50);
        assert!(tokio::time::timeout(patience, timer.expired()).await.is_err(), "it is not set");
        for _ in 0..3 {
            let from = Instant::now();
            timer.set(Duration::from_micros(300)).unwrap();
            timer.expired().await;
            assert!(from.elapsed() >= Duration::from_micros(300));
            assert!(tokio::time::timeout(patience, timer.expired()).await.is_err(), "it has expired");
        }
        timer.set(Duration::from_secs(3600)).unwrap();
        timer.set(Duration::ZERO).unwrap();
        timer.expired().await;
    }
}
