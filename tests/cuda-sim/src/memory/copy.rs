//! Copies between host and device memory, in one piece.
//!
//! An address that the driver did not hand out is the host's. The bytes are copied at once; how long it takes over the
//! link is modelled.
#![allow(clippy::too_many_arguments, reason = "the API's own argument lists")]

use crate::abi::{Handle, In, api};
use crate::error::{Answer, Error};
use crate::memory::access::link;
use crate::objects::Objects;
use crate::{backing, stream};
use omni_cuda_card::Direction;

api! {
    fn cuMemcpy | cuMemcpy_ptds(to: u64, from: u64, bytes: usize) = any;
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: Handle) = any_async;
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(to: u64, from: u64, bytes: usize) = to_device;
    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: Handle)
        = to_device_async;
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(to: u64, from: u64, bytes: usize) = to_host;
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: Handle)
        = to_host_async;
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) = on_device;
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: Handle)
        = on_device_async;
    fn cuMemcpyPeer | cuMemcpyPeer_ptds(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize)
        = peer;
    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle,
    ) = peer_async;
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(
        to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, attributes: u64, firsts: u64, kinds: usize,
        failed: crate::abi::Out<usize>, stream: Handle,
    ) = batch_1;
    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(
        to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, attributes: u64, firsts: u64, kinds: usize,
        stream: Handle,
    ) = batch_2;
    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(
        to: u64, from: u64, bytes: usize, attributes: u64, stream: Handle,
    ) = with_attributes;
}

/// Kind of address that a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Memory of the host, whatever the driver knows of it.
    Host,
    /// Memory that the driver handed out; anything else is an error.
    Device,
    /// Either: the driver knows.
    Known,
}

/// Piece of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl Objects {
    /// Copies one piece; answers when it is over.
    ///
    /// # Errors
    /// When device memory is expected and is not there.
    pub(crate) fn copy(
        &mut self,
        device: usize,
        (to, from): (Side, Side),
        piece: Piece,
        start: u64,
    ) -> Result<u64, Error> {
        if piece.bytes == 0 {
            return Ok(start);
        }
        if piece.to == 0 || piece.from == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let on_device = |objects: &Self, side: Side, address: u64| match side {
            Side::Host => false,
            Side::Device => true,
            Side::Known => objects.allocations.at(address).is_some_and(|allocation| !allocation.is_host()),
        };
        let (to, from) = (on_device(self, to, piece.to), on_device(self, from, piece.from));
        let mut done = start;
        if from {
            done = self.device_uses(device, (piece.from, piece.bytes), false, done)?;
        }
        if to {
            done = self.device_uses(device, (piece.to, piece.bytes), true, done)?;
        }
        backing::copy(piece.to, piece.from, piece.bytes);
        match (from, to) {
            (false, true) => link(device, done, piece.bytes, Direction::ToDevice),
            (true, false) => link(device, done, piece.bytes, Direction::ToHost),
            (false, false) | (true, true) => Ok(done),
        }
    }
}

fn submit(sides: (Side, Side), piece: Piece, stream: Handle) -> Answer {
    stream::submit(stream, |objects, device, start| objects.copy(device, sides, piece, start))
}

fn run(sides: (Side, Side), piece: Piece) -> Answer {
    stream::run(|objects, device, start| objects.copy(device, sides, piece, start))
}

fn piece(to: u64, from: u64, bytes: usize) -> Piece {
    Piece { to, from, bytes: bytes as u64 }
}

fn any(to: u64, from: u64, bytes: usize) -> Answer {
    run((Side::Known, Side::Known), piece(to, from, bytes))
}

fn any_async(to: u64, from: u64, bytes: usize, stream: Handle) -> Answer {
    submit((Side::Known, Side::Known), piece(to, from, bytes), stream)
}

pub(super) fn to_device(to: u64, from: u64, bytes: usize) -> Answer {
    run((Side::Device, Side::Host), piece(to, from, bytes))
}

pub(super) fn to_device_async(to: u64, from: u64, bytes: usize, stream: Handle) -> Answer {
    submit((Side::Device, Side::Host), piece(to, from, bytes), stream)
}

pub(super) fn to_host(to: u64, from: u64, bytes: usize) -> Answer {
    run((Side::Host, Side::Device), piece(to, from, bytes))
}

pub(super) fn to_host_async(to: u64, from: u64, bytes: usize, stream: Handle) -> Answer {
    submit((Side::Host, Side::Device), piece(to, from, bytes), stream)
}

pub(super) fn on_device(to: u64, from: u64, bytes: usize) -> Answer {
    run((Side::Device, Side::Device), piece(to, from, bytes))
}

pub(super) fn on_device_async(to: u64, from: u64, bytes: usize, stream: Handle) -> Answer {
    submit((Side::Device, Side::Device), piece(to, from, bytes), stream)
}

fn peer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) -> Answer {
    peers(to_context, from_context)?;
    on_device(to, from, bytes)
}

fn peer_async(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) -> Answer {
    peers(to_context, from_context)?;
    on_device_async(to, from, bytes, stream)
}

fn peers(to: Handle, from: Handle) -> Answer {
    let mut objects = crate::objects::objects()?;
    objects.context(to)?;
    objects.context(from).map(drop)
}

/// Attributes are hints.
fn with_attributes(to: u64, from: u64, bytes: usize, _attributes: u64, stream: Handle) -> Answer {
    any_async(to, from, bytes, stream)
}

fn batch_1(
    to: In<u64>,
    from: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: u64,
    firsts: u64,
    kinds: usize,
    failed: crate::abi::Out<usize>,
    stream: Handle,
) -> Answer {
    batch_2(to, from, sizes, count, attributes, firsts, kinds, stream)
        // All are checked before any is copied: the failure belongs to none in particular.
        .inspect_err(|_| failed.put_if(usize::MAX))
}

/// Stream 0 takes no batches, as documented.
fn batch_2(
    to: In<u64>,
    from: In<u64>,
    sizes: In<usize>,
    count: usize,
    _attributes: u64,
    _firsts: u64,
    _kinds: usize,
    stream: Handle,
) -> Answer {
    crate::machine::all()?;
    let (to, from, sizes) = (to.get_all(count)?, from.get_all(count)?, sizes.get_all(count)?);
    if count == 0 || stream::is_legacy(stream) || sizes.contains(&0) {
        return Err(Error::INVALID_VALUE);
    }
    stream::submit(stream, |objects, device, start| {
        let mut done = start;
        for ((to, from), bytes) in to.iter().zip(&from).zip(&sizes) {
            done = objects.copy(device, (Side::Known, Side::Known), piece(*to, *from, *bytes), done)?;
        }
        Ok(done)
    })
}
