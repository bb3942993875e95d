//! Copies of rows and arrays in their first forms, whose device addresses, offsets and sizes have 32 bits.

use super::copies::{self, Solid, SolidEnd, described, described_async};
use crate::abi::{Handle, In, api};
use crate::error::Answer;

api! {
    fn cuMemcpy2D(copy: In<Flat>) = described;
    fn cuMemcpy2DUnaligned(copy: In<Flat>) = described;
    fn cuMemcpy2DAsync(copy: In<Flat>, stream: Handle) = described_async;
    fn cuMemcpy3D(copy: In<Boxed>) = described;
    fn cuMemcpy3DAsync(copy: In<Boxed>, stream: Handle) = described_async;
    fn cuMemcpyAtoH(to: u64, array: Handle, offset: u32, bytes: u32) = out_of_array;
    fn cuMemcpyAtoHAsync(to: u64, array: Handle, offset: u32, bytes: u32, stream: Handle) = out_of_array_async;
    fn cuMemcpyAtoD(to: u32, array: Handle, offset: u32, bytes: u32) = out_of_array_to_device;
    fn cuMemcpyHtoA(array: Handle, offset: u32, from: u64, bytes: u32) = into_array;
    fn cuMemcpyHtoAAsync(array: Handle, offset: u32, from: u64, bytes: u32, stream: Handle) = into_array_async;
    fn cuMemcpyDtoA(array: Handle, offset: u32, from: u32, bytes: u32) = into_array_from_device;
    fn cuMemcpyAtoA(to: Handle, to_offset: u32, from: Handle, from_offset: u32, bytes: u32) = between_arrays;
}

/// `CUDA_MEMCPY2D_v1`. Its second end begins where the first has its padding, so the two are no structures.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Flat {
    from_x: u32,
    from_y: u32,
    from_kind: u32,
    from_host: u64,
    from_device: u32,
    from_array: Handle,
    from_pitch: u32,
    to_x: u32,
    to_y: u32,
    to_kind: u32,
    to_host: u64,
    to_device: u32,
    to_array: Handle,
    to_pitch: u32,
    width: u32,
    height: u32,
}

/// End of a copy in `CUDA_MEMCPY3D_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BoxedEnd {
    x: u32,
    y: u32,
    z: u32,
    level: u32,
    kind: u32,
    host: u64,
    device: u32,
    array: Handle,
    reserved: u64,
    pitch: u32,
    height: u32,
}

/// `CUDA_MEMCPY3D_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Boxed {
    from: BoxedEnd,
    to: BoxedEnd,
    width: u32,
    height: u32,
    depth: u32,
}

const _: () = assert!(size_of::<Flat>() == 96 && size_of::<Boxed>() == 144);

impl From<BoxedEnd> for SolidEnd {
    fn from(end: BoxedEnd) -> Self {
        let BoxedEnd { kind, host, array, reserved, .. } = end;
        let [x, y, z, level] = [end.x, end.y, end.z, end.level].map(|number| number as usize);
        let (device, pitch, height) = (end.device.into(), end.pitch as usize, end.height as usize);
        Self { x, y, z, level, kind, host, device, array, reserved, pitch, height }
    }
}

impl From<Flat> for Solid {
    fn from(flat: Flat) -> Self {
        let from = BoxedEnd {
            x: flat.from_x,
            y: flat.from_y,
            z: 0,
            level: 0,
            kind: flat.from_kind,
            host: flat.from_host,
            device: flat.from_device,
            array: flat.from_array,
            reserved: 0,
            pitch: flat.from_pitch,
            height: 0,
        };
        let to = BoxedEnd {
            x: flat.to_x,
            y: flat.to_y,
            kind: flat.to_kind,
            host: flat.to_host,
            device: flat.to_device,
            array: flat.to_array,
            pitch: flat.to_pitch,
            ..from
        };
        Boxed { from, to, width: flat.width, height: flat.height, depth: 1 }.into()
    }
}

impl From<Boxed> for Solid {
    fn from(Boxed { from, to, width, height, depth }: Boxed) -> Self {
        let [width, height, depth] = [width, height, depth].map(|number| number as usize);
        Self { from: from.into(), to: to.into(), width, height, depth }
    }
}

fn out_of_array(to: u64, array: Handle, offset: u32, bytes: u32) -> Answer {
    copies::out_of_array(to, array, offset as usize, bytes as usize)
}

fn out_of_array_async(to: u64, array: Handle, offset: u32, bytes: u32, stream: Handle) -> Answer {
    copies::out_of_array_async(to, array, offset as usize, bytes as usize, stream)
}

fn out_of_array_to_device(to: u32, array: Handle, offset: u32, bytes: u32) -> Answer {
    copies::out_of_array_to_device(to.into(), array, offset as usize, bytes as usize)
}

fn into_array(array: Handle, offset: u32, from: u64, bytes: u32) -> Answer {
    copies::into_array(array, offset as usize, from, bytes as usize)
}

fn into_array_async(array: Handle, offset: u32, from: u64, bytes: u32, stream: Handle) -> Answer {
    copies::into_array_async(array, offset as usize, from, bytes as usize, stream)
}

fn into_array_from_device(array: Handle, offset: u32, from: u32, bytes: u32) -> Answer {
    copies::into_array_from_device(array, offset as usize, from.into(), bytes as usize)
}

fn between_arrays(to: Handle, to_offset: u32, from: Handle, from_offset: u32, bytes: u32) -> Answer {
    copies::between_arrays(to, to_offset as usize, from, from_offset as usize, bytes as usize)
}
