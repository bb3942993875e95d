//! Copies and fills in their first forms, whose device addresses and counts have 32 bits.
//!
//! They reach memory of `cuMemAlloc` and `cuMemAllocPitch` of the same age. The host's addresses are whole ones.

use super::{copy, set};
use crate::abi::{Handle, api};
use crate::error::Answer;

api! {
    fn cuMemcpyHtoD(to: u32, from: u64, bytes: u32) = to_device;
    fn cuMemcpyHtoDAsync(to: u32, from: u64, bytes: u32, stream: Handle) = to_device_async;
    fn cuMemcpyDtoH(to: u64, from: u32, bytes: u32) = to_host;
    fn cuMemcpyDtoHAsync(to: u64, from: u32, bytes: u32, stream: Handle) = to_host_async;
    fn cuMemcpyDtoD(to: u32, from: u32, bytes: u32) = on_device;
    fn cuMemcpyDtoDAsync(to: u32, from: u32, bytes: u32, stream: Handle) = on_device_async;
    fn cuMemsetD8(to: u32, value: u8, count: u32) = set_8;
    fn cuMemsetD16(to: u32, value: u16, count: u32) = set_16;
    fn cuMemsetD32(to: u32, value: u32, count: u32) = set_32;
    fn cuMemsetD2D8(to: u32, pitch: u32, value: u8, width: u32, height: u32) = rows_8;
    fn cuMemsetD2D16(to: u32, pitch: u32, value: u16, width: u32, height: u32) = rows_16;
    fn cuMemsetD2D32(to: u32, pitch: u32, value: u32, width: u32, height: u32) = rows_32;
}

fn to_device(to: u32, from: u64, bytes: u32) -> Answer {
    copy::to_device(to.into(), from, bytes as usize)
}

fn to_device_async(to: u32, from: u64, bytes: u32, stream: Handle) -> Answer {
    copy::to_device_async(to.into(), from, bytes as usize, stream)
}

fn to_host(to: u64, from: u32, bytes: u32) -> Answer {
    copy::to_host(to, from.into(), bytes as usize)
}

fn to_host_async(to: u64, from: u32, bytes: u32, stream: Handle) -> Answer {
    copy::to_host_async(to, from.into(), bytes as usize, stream)
}

fn on_device(to: u32, from: u32, bytes: u32) -> Answer {
    copy::on_device(to.into(), from.into(), bytes as usize)
}

fn on_device_async(to: u32, from: u32, bytes: u32, stream: Handle) -> Answer {
    copy::on_device_async(to.into(), from.into(), bytes as usize, stream)
}

fn set_8(to: u32, value: u8, count: u32) -> Answer {
    set::set_8(to.into(), value, count as usize)
}

fn set_16(to: u32, value: u16, count: u32) -> Answer {
    set::set_16(to.into(), value, count as usize)
}

fn set_32(to: u32, value: u32, count: u32) -> Answer {
    set::set_32(to.into(), value, count as usize)
}

fn rows_8(to: u32, pitch: u32, value: u8, width: u32, height: u32) -> Answer {
    set::rows_8(to.into(), pitch as usize, value, width as usize, height as usize)
}

fn rows_16(to: u32, pitch: u32, value: u16, width: u32, height: u32) -> Answer {
    set::rows_16(to.into(), pitch as usize, value, width as usize, height as usize)
}

fn rows_32(to: u32, pitch: u32, value: u32, width: u32, height: u32) -> Answer {
    set::rows_32(to.into(), pitch as usize, value, width as usize, height as usize)
}
