//! Settings and faults of a card: values that tests set.

use crate::layout::{FaultWords, SettingsWords};

/// Settings of a card. Fixed when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name, at most 64 bytes.
    pub name: String,
    /// Written as "GPU-" and five groups of hexadecimal digits.
    pub uuid: [u8; 16],
    /// Bytes of its memory.
    pub memory: u64,
    /// The driver's version as `cuDriverGetVersion` says it: 12090 is 12.9.
    pub driver: u32,
    /// Speed from host to device, bytes per second; 0: takes no time.
    pub to_device: u64,
    /// Speed from device to host, bytes per second; 0: takes no time.
    pub to_host: u64,
    /// Moves that page faults cause, bytes per second; 0: take no time.
    pub by_fault: u64,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// The attribute `concurrentManagedAccess`.
    pub concurrent_managed: bool,
    /// Bytes that each context takes for itself.
    pub context_bytes: u64,
}

impl Settings {
    /// Card number `index` of a machine: 24 GiB, driver 12.9, moves take no time, a context takes nothing.
    #[must_use]
    pub fn numbered(index: u8) -> Self {
        let mut uuid = *b"\x0a\x11\x1e\x55\x51\x4d\x40\x00\x80\x00\x00\x00\x00\x00\x00\x00";
        uuid[15] = index;
        Self {
            name: "Omni Simulated GPU".to_owned(),
            uuid,
            memory: 24 << 30,
            driver: 12090,
            to_device: 0,
            to_host: 0,
            by_fault: 0,
            capability: (9, 0),
            concurrent_managed: true,
            context_bytes: 0,
        }
    }

    /// "GPU-0a111e55-514d-4000-8000-000000000000".
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    pub(crate) fn write(&self, words: &SettingsWords) {
        words.name.set(&self.name);
        let (high, low) = halves(self.uuid);
        words.uuid[0].set(high);
        words.uuid[1].set(low);
        words.memory.set(self.memory);
        words.driver.set(u64::from(self.driver));
        words.to_device.set(self.to_device);
        words.to_host.set(self.to_host);
        words.by_fault.set(self.by_fault);
        words.capability.set(u64::from(self.capability.0) * 10 + u64::from(self.capability.1));
        words.concurrent_managed.set(u64::from(self.concurrent_managed));
        words.context_bytes.set(self.context_bytes);
    }

    pub(crate) fn read(words: &SettingsWords) -> Self {
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let uuid = (u128::from(words.uuid[0].get()) << 64) | u128::from(words.uuid[1].get());
        let capability = small(words.capability.get());
        Self {
            name: words.name.get(),
            uuid: uuid.to_be_bytes(),
            memory: words.memory.get(),
            driver: small(words.driver.get()),
            to_device: words.to_device.get(),
            to_host: words.to_host.get(),
            by_fault: words.by_fault.get(),
            capability: (capability / 10, capability % 10),
            concurrent_managed: words.concurrent_managed.get() != 0,
            context_bytes: words.context_bytes.get(),
        }
    }
}

fn halves(uuid: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_be_bytes(uuid);
    (u64::try_from(whole >> 64).unwrap_or(0), u64::try_from(whole & u128::from(u64::MAX)).unwrap_or(0))
}

/// Faults from now on, for all processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// The allocation so many from now (1: the next) fails with `CUDA_ERROR_OUT_OF_MEMORY`, once. 0: none.
    pub fail_allocation: u64,
    /// The code that every call with a context on this card answers: 46 (unavailable), 700 (illegal address). 0: none.
    pub lost: u32,
    /// A symbol, `cuMemAlloc_v2` or `cuMemPrefetchAsync`, whose calls begin late. Empty: none.
    pub slow_call: String,
    /// Delay of calls.
    pub slow_milliseconds: u64,
    /// Fault of prefetches.
    pub prefetch: Prefetch,
}

/// Fault of prefetches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Prefetches work.
    #[default]
    Works,
    /// Prefetches return this code and move nothing.
    Fails(u32),
    /// The call does not return before the fault is taken away.
    Hangs,
}

const HANGS: u64 = 1 << 32;

impl Faults {
    pub(crate) fn write(&self, words: &FaultWords) {
        words.fail_allocation.set(self.fail_allocation);
        words.lost.set(u64::from(self.lost));
        words.slow_call.set(&self.slow_call);
        words.slow_milliseconds.set(self.slow_milliseconds);
        words.prefetch.set(match self.prefetch {
            Prefetch::Works => 0,
            Prefetch::Fails(code) => u64::from(code),
            Prefetch::Hangs => HANGS,
        });
    }

    pub(crate) fn read(words: &FaultWords) -> Self {
        Self {
            fail_allocation: words.fail_allocation.get(),
            lost: u32::try_from(words.lost.get()).unwrap_or(u32::MAX),
            slow_call: words.slow_call.get(),
            slow_milliseconds: words.slow_milliseconds.get(),
            prefetch: match words.prefetch.get() {
                0 => Prefetch::Works,
                HANGS => Prefetch::Hangs,
                code => Prefetch::Fails(u32::try_from(code).unwrap_or(u32::MAX)),
            },
        }
    }
}
