//! A program that uses the GPU through `cudarc`, as a Rust model server does: memory, copies, streams, the end of memory.
//!
//! Run by `tests/gpu_clients.rs`. OMNI_TEST_TOTAL says how many bytes it must see; without it there is no driver, which
//! must be something that a program can live with.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step of a test is a failed test")]

use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
use cudarc::driver::{CudaContext, DriverError};
use std::env;

const BYTES: usize = 8 << 20;

fn main() -> Result<(), DriverError> {
    let Ok(total) = env::var("OMNI_TEST_TOTAL") else {
        let asked = std::panic::catch_unwind(CudaContext::device_count);
        assert!(asked.is_err(), "cudarc panics without a driver, and can be caught");
        return Ok(());
    };
    let total: usize = total.parse().expect("bytes");
    assert_eq!(CudaContext::device_count()?, 1);
    let context = CudaContext::new(0)?;
    assert_eq!(context.total_mem()?, total);
    let (free, whole) = context.mem_get_info()?;
    assert!(whole == total && free <= total, "{free} of {whole}");

    let stream = context.new_stream()?;
    let data: Vec<u32> = (0..u32::try_from(BYTES / 4).expect("small")).collect();
    let there = stream.clone_htod(&data)?;
    let mut again = stream.alloc_zeros::<u32>(data.len())?;
    stream.synchronize()?;
    let (less, _) = context.mem_get_info()?;
    assert!(free - less >= 2 * BYTES, "{} taken", free - less);
    assert!(stream.clone_dtoh(&again)?.iter().all(|number| *number == 0));
    stream.memcpy_dtod(&there, &mut again)?;
    assert_eq!(stream.clone_dtoh(&again)?, data);

    let beyond = stream.alloc_zeros::<u8>(total + 1).map(drop);
    assert_eq!(beyond, Err(DriverError(CUDA_ERROR_OUT_OF_MEMORY)));
    drop((there, again));
    stream.synchronize()
}
