//! Copies of boxes whose ends are described in elements: one, or many in one call.

use super::table::rows;
use super::volume::{End, Extent, Place, copy};
use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::objects::Objects;
use crate::stream::{self, submit};

api! {
    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(
        count: usize, copies: In<Copied>, failed: Out<usize>, flags: u64, stream: Handle,
    ) = batch_1;
    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(
        count: usize, copies: In<Copied>, flags: u64, stream: Handle,
    ) = batch_2;
    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(
        copied: In<Copied>, flags: u64, stream: Handle,
    ) = one;
}

/// `CUmemcpy3DOperand`. What the words mean depends on the kind.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Operand {
    kind: u32,
    /// An address or an array.
    what: u64,
    /// An address: elements of a row, rows of a layer, and a hint. An array: where in it, in elements.
    words: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Copied {
    from: Operand,
    to: Operand,
    /// Extent in elements, or in bytes when no array takes part.
    extent: [u64; 3],
    /// Time from which the source may be read: at any time, here.
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Operand>() == 40 && size_of::<Copied>() == 112);

/// `CUmemcpy3DOperandType`.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;

impl Operand {
    /// Bytes of an element, where an array says it.
    fn element(&self) -> Result<Option<u64>, Error> {
        match self.kind {
            POINTER => Ok(None),
            ARRAY => Ok(Some(rows(self.what)?.element)),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn end(&self, element: u64, extent: [u64; 3]) -> Result<End, Error> {
        let bytes = |elements: u64| elements.checked_mul(element).ok_or(Error::INVALID_VALUE);
        if self.kind == ARRAY {
            let [x, y, z] = self.words;
            return Ok(End { place: Place::Array(self.what), x: bytes(x)?, y, z });
        }
        // 0: as long as what is copied.
        let [row, layer, _] = self.words;
        let pitch = bytes(if row == 0 { extent[0] } else { row })?;
        let height = if layer == 0 { extent[1] } else { layer };
        Ok(End { place: Place::Linear { address: self.what, pitch, height }, x: 0, y: 0, z: 0 })
    }
}

impl Copied {
    fn run(&self, objects: &mut Objects, device: usize, start: u64) -> Result<u64, Error> {
        let element = match (self.from.element()?, self.to.element()?) {
            (Some(from), Some(to)) if from != to => return Err(Error::INVALID_VALUE),
            (from, to) => from.or(to).unwrap_or(1),
        };
        let [width, height, depth] = self.extent;
        if self.extent.contains(&0) {
            return Err(Error::INVALID_VALUE);
        }
        let (to, from) = (self.to.end(element, self.extent)?, self.from.end(element, self.extent)?);
        let width = width.checked_mul(element).ok_or(Error::INVALID_VALUE)?;
        copy(objects, device, start, (to, from, Extent { width, height, depth }))
    }
}

fn batch_1(count: usize, copies: In<Copied>, failed: Out<usize>, flags: u64, stream: Handle) -> Answer {
    // The failure belongs to no copy in particular.
    batch_2(count, copies, flags, stream).inspect_err(|_| failed.put_if(usize::MAX))
}

fn batch_2(count: usize, copies: In<Copied>, flags: u64, stream: Handle) -> Answer {
    crate::machine::all()?;
    if count == 0 || flags != 0 || stream::is_legacy(stream) {
        return Err(Error::INVALID_VALUE);
    }
    let copies = copies.get_all(count)?;
    submit(stream, |objects, device, start| copies.iter().try_fold(start, |done, one| one.run(objects, device, done)))
}

fn one(copied: In<Copied>, flags: u64, stream: Handle) -> Answer {
    let copied = copied.get()?;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    submit(stream, |objects, device, start| copied.run(objects, device, start))
}
