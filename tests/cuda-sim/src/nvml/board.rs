//! The cards of this machine as NVML shows them, in the order of their minor numbers.

use super::Failure;
use super::processes::{self, Used};
use super::shapes::Memory;
use crate::machine;
use omni_cuda_card::{Card, Settings, State};

/// Card as NVML shows it.
#[derive(Debug)]
pub(super) struct Board {
    /// N of `/dev/nvidiaN`. Its bus is the next number.
    pub(super) minor: u8,
    card: Card,
    pub(super) settings: Settings,
}

/// Every card that this process can open.
pub(super) fn all() -> Vec<Board> {
    let board = |(minor, card): (u8, Card)| Board { minor, settings: card.settings(), card };
    machine::cards().into_iter().map(board).collect()
}

impl Board {
    fn state(&self) -> Result<State, Failure> {
        if self.card.lost().is_some() {
            return Err(Failure::GpuIsLost);
        }
        self.card.state().map_err(|_| Failure::Unknown)
    }

    /// Used memory, by any process.
    pub(super) fn memory(&self) -> Result<Memory, Failure> {
        let used = self.state()?.used();
        let total = self.settings.memory;
        Ok(Memory { total, free: total.saturating_sub(used), used })
    }

    /// Processes with a context, and their memory that is not managed.
    pub(super) fn processes(&self) -> Result<Vec<Used>, Failure> {
        let file = machine::directory().join(format!("nvidia{}", self.minor));
        Ok(processes::seen_from_here(&self.state()?.processes, &file))
    }

    /// "domain:bus:device.function" with so many digits of the domain.
    pub(super) fn bus_id(&self, digits: usize) -> String {
        format!("{:0digits$X}:{:02X}:00.0", 0, self.bus())
    }

    pub(super) fn bus(&self) -> u32 {
        u32::from(self.minor) + 1
    }
}

/// The first driver branch that serves this release of CUDA: 525 for 12, 580 for 13.
pub(super) fn driver_version(settings: &Settings) -> String {
    format!("{}.00.00", if settings.driver >= 13000 { 580 } else { 525 })
}
