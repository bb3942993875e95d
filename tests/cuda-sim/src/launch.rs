//! Launches, which succeed and compute nothing, and attributes of functions.
#![allow(clippy::too_many_arguments, reason = "the API's own argument lists")]

use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::objects::objects;
use crate::stream;

api! {
    fn cuLaunchKernel | cuLaunchKernel_ptsz(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Handle, parameters: u64, more: u64,
    ) = launch;
    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Handle, parameters: u64,
    ) = launch_together;
    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(how: In<Launch>, function: Handle, parameters: u64, more: u64)
        = launch_as;
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) = attribute;
    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, device: i32) = kernel_attribute;
    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) = set;
    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: Handle, device: i32) = set_kernel;
    fn cuFuncSetCacheConfig(function: Handle, config: u32) = configure;
    fn cuFuncSetSharedMemConfig(function: Handle, config: u32) = configure;
    fn cuKernelSetCacheConfig(kernel: Handle, config: u32, device: i32) = configure_kernel;
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: Handle, block: i32, shared: usize)
        = active_blocks;
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: Handle, block: i32, shared: usize, flags: u32,
    ) = active_blocks_with_flags;
    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: Handle, shared_of: u64, shared: usize, limit: i32,
    ) = block_size;
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: Handle, shared_of: u64, shared: usize, limit: i32, flags: u32,
    ) = block_size_with_flags;
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: i32, block: i32)
        = shared_memory;
}

/// `CUlaunchConfig`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: u64,
    count: u32,
}

/// Threads of a block, and of a multiprocessor; multiprocessors: as the attributes of the devices say.
const BLOCK: i32 = 1024;
const MULTIPROCESSOR: i32 = 2048;
const MULTIPROCESSORS: i32 = 16;

fn start(function: Handle, grid: [u32; 3], block: [u32; 3], stream: Handle) -> Answer {
    let threads = block.iter().try_fold(1_u32, |product, size| product.checked_mul(*size)).unwrap_or(u32::MAX);
    {
        let objects = objects()?;
        objects.function(function)?;
    }
    if grid.contains(&0) || block.contains(&0) || i32::try_from(threads).map_or(true, |threads| threads > BLOCK) {
        return Err(Error::INVALID_VALUE);
    }
    stream::submit(stream, |_, _, start| Ok(start))
}

fn launch(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: Handle,
    _parameters: u64,
    _more: u64,
) -> Answer {
    start(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream)
}

fn launch_together(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: Handle,
    _parameters: u64,
) -> Answer {
    start(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream)
}

fn launch_as(how: In<Launch>, function: Handle, _parameters: u64, _more: u64) -> Answer {
    let how = how.get()?;
    start(function, how.grid, how.block, how.stream)
}

/// Threads in a block, registers, versions; the rest is 0.
fn attribute(value: Out<i32>, attribute: u32, function: Handle) -> Answer {
    objects()?.function(function)?;
    value.put(match attribute {
        0 => BLOCK,
        4 => 32,
        5 | 6 => 90,
        8 => 49152,
        1..=17 => 0,
        _ => return Err(Error::INVALID_VALUE),
    })
}

fn kernel_attribute(value: Out<i32>, wanted: u32, kernel: Handle, device: i32) -> Answer {
    crate::machine::device(device)?;
    attribute(value, wanted, kernel)
}

fn set(function: Handle, attribute: u32, value: i32) -> Answer {
    objects()?.function(function)?;
    if matches!(attribute, 8..=17) && value >= -1 { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

fn set_kernel(attribute: u32, value: i32, kernel: Handle, device: i32) -> Answer {
    crate::machine::device(device)?;
    set(kernel, attribute, value)
}

fn configure(function: Handle, _config: u32) -> Answer {
    objects()?.function(function).map(drop)
}

fn configure_kernel(kernel: Handle, config: u32, device: i32) -> Answer {
    crate::machine::device(device)?;
    configure(kernel, config)
}

fn active_blocks(blocks: Out<i32>, function: Handle, block: i32, shared: usize) -> Answer {
    active_blocks_with_flags(blocks, function, block, shared, 0)
}

fn active_blocks_with_flags(blocks: Out<i32>, function: Handle, block: i32, _shared: usize, flags: u32) -> Answer {
    objects()?.function(function)?;
    if block < 1 || flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    blocks.put(if block > BLOCK { 0 } else { (MULTIPROCESSOR / block).min(32) })
}

fn block_size(grid: Out<i32>, block: Out<i32>, function: Handle, shared_of: u64, shared: usize, limit: i32) -> Answer {
    block_size_with_flags(grid, block, function, shared_of, shared, limit, 0)
}

fn block_size_with_flags(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    _shared_of: u64,
    _shared: usize,
    limit: i32,
    flags: u32,
) -> Answer {
    objects()?.function(function)?;
    if limit < 0 || flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let size = if limit == 0 { BLOCK } else { limit.min(BLOCK) };
    grid.put(MULTIPROCESSORS * (MULTIPROCESSOR / size).min(32))?;
    block.put(size)
}

fn shared_memory(bytes: Out<usize>, function: Handle, blocks: i32, block: i32) -> Answer {
    objects()?.function(function)?;
    if blocks < 1 || block < 1 {
        return Err(Error::INVALID_VALUE);
    }
    bytes.put(102_400_usize.div_euclid(usize::try_from(blocks).unwrap_or(1)).min(49152))
}
