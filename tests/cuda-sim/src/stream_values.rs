//! Streams that wait for a value in memory, and that write one.
//!
//! A wait holds up all later work of the stream: its functions, its values, and every wait for it. Copies and fills
//! after it take effect at once, like all work that is put into a stream.

use crate::abi::{Handle, In, api};
use crate::backing;
use crate::error::{Answer, Error};
use crate::host_functions::{self, Awaited, Call};
use crate::objects::{Objects, objects};

api! {
    fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz(stream: Handle, at: u64, value: u32, flags: u32) = wait_32;
    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(stream: Handle, at: u64, value: u32, flags: u32) = wait_32;
    fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz(stream: Handle, at: u64, value: u64, flags: u32) = wait_64;
    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(stream: Handle, at: u64, value: u64, flags: u32) = wait_64;
    fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz(stream: Handle, at: u64, value: u32, flags: u32) = write_32;
    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(stream: Handle, at: u64, value: u32, flags: u32)
        = write_32;
    fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz(stream: Handle, at: u64, value: u64, flags: u32) = write_64;
    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(stream: Handle, at: u64, value: u64, flags: u32)
        = write_64;
    fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz(stream: Handle, count: u32, operations: In<Operation>, flags: u32)
        = batch;
    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(
        stream: Handle, count: u32, operations: In<Operation>, flags: u32,
    ) = batch;
}

/// `CUstreamBatchMemOpParams` of a wait or a write.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Operation {
    kind: u32,
    at: u64,
    /// The lower half, where it has 32 bits.
    value: u64,
    flags: u32,
    _alias: u64,
    _rest: u64,
}

const _: () = assert!(size_of::<Operation>() == 48);
/// `CUstreamBatchMemOpType`.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;
/// Operations of one call.
const BATCH: u32 = 256;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: no device here says that it can.
const FLUSH: u32 = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: u32 = 1;

/// Checked operation.
#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(Awaited),
    Write { at: u64, value: u64, is_wide: bool },
    Nothing,
}

impl Step {
    fn wait(at: u64, value: u64, flags: u32, is_wide: bool) -> Result<Self, Error> {
        if flags & FLUSH != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        let how = host_functions::Until::of(flags).ok_or(Error::INVALID_VALUE)?;
        Ok(Self::Wait(Awaited { at, value, is_wide, how }))
    }

    fn write(at: u64, value: u64, flags: u32, is_wide: bool) -> Result<Self, Error> {
        if flags & !NO_BARRIER == 0 { Ok(Self::Write { at, value, is_wide }) } else { Err(Error::INVALID_VALUE) }
    }
}

impl Operation {
    fn step(&self) -> Result<Step, Error> {
        let Self { kind, at, value, flags, .. } = *self;
        let low = value & u64::from(u32::MAX);
        match kind {
            WAIT_32 => Step::wait(at, low, flags, false),
            WAIT_64 => Step::wait(at, value, flags, true),
            WRITE_32 => Step::write(at, low, flags, false),
            WRITE_64 => Step::write(at, value, flags, true),
            BARRIER => Ok(Step::Nothing),
            _ => Err(Error::NOT_SUPPORTED),
        }
    }
}

impl Objects {
    /// The memory is any but managed: that cannot be used by such operations.
    fn check_step(&mut self, device: usize, step: Step, start: u64) -> Result<u64, Error> {
        let (at, is_wide, writes) = match step {
            Step::Wait(Awaited { at, is_wide, .. }) => (at, is_wide, false),
            Step::Write { at, is_wide, .. } => (at, is_wide, true),
            Step::Nothing => return Ok(start),
        };
        let bytes = if is_wide { 8 } else { 4 };
        let is_managed = self.allocations.at(at).is_some_and(|allocation| allocation.managed().is_some());
        if is_managed || !at.is_multiple_of(bytes) {
            return Err(Error::INVALID_VALUE);
        }
        self.device_uses(device, (at, bytes), writes, start)
    }
}

fn carry_out(handle: Handle, steps: &[Step]) -> Answer {
    let mut objects = objects()?;
    let handle = objects.stream(handle)?;
    if objects.records(handle)? {
        return Ok(());
    }
    let (device, mut done) = (objects.device_of_stream(handle)?, objects.begin(handle)?);
    for step in steps {
        done = objects.check_step(device, *step, done)?;
    }
    objects.busy_until(handle, done);
    let stream = objects.streams.get_mut(&handle).ok_or(Error::INVALID_HANDLE)?;
    for step in steps {
        match *step {
            Step::Wait(value) => stream.functions.wait_for(value),
            Step::Write { at, value, is_wide } if host_functions::are_done(&stream.functions) => {
                backing::store(at, value, is_wide);
            }
            Step::Write { at, value, is_wide } => {
                host_functions::put(handle, &mut stream.functions, done, Call::Write { at, value, is_wide });
            }
            Step::Nothing => {}
        }
    }
    Ok(())
}

fn wait_32(stream: Handle, at: u64, value: u32, flags: u32) -> Answer {
    carry_out(stream, &[Step::wait(at, value.into(), flags, false)?])
}

fn wait_64(stream: Handle, at: u64, value: u64, flags: u32) -> Answer {
    carry_out(stream, &[Step::wait(at, value, flags, true)?])
}

fn write_32(stream: Handle, at: u64, value: u32, flags: u32) -> Answer {
    carry_out(stream, &[Step::write(at, value.into(), flags, false)?])
}

fn write_64(stream: Handle, at: u64, value: u64, flags: u32) -> Answer {
    carry_out(stream, &[Step::write(at, value, flags, true)?])
}

fn batch(stream: Handle, count: u32, operations: In<Operation>, flags: u32) -> Answer {
    if flags != 0 || count > BATCH {
        return Err(Error::INVALID_VALUE);
    }
    let operations = operations.get_all(count as usize)?;
    carry_out(stream, &operations.iter().map(Operation::step).collect::<Result<Vec<_>, _>>()?)
}
