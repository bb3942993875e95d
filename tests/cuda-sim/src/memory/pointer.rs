//! Attributes of pointers.

use crate::abi::{Handle, In, api, out_at};
use crate::error::{Answer, Error};
use crate::memory::allocation::{Allocation, Kind};
use crate::objects::objects;

api! {
    fn cuPointerGetAttribute(data: u64, attribute: u32, pointer: u64) = attribute;
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<u64>, pointer: u64) = attributes;
    fn cuPointerSetAttribute(value: In<u32>, attribute: u32, pointer: u64) = set_attribute;
}

/// `CU_MEMORYTYPE_HOST`, `_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: u32 = 6;
/// The last number of CUDA 13.
const LAST: u32 = 22;

/// A value of the size that the attribute has.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// A truth value is 4 bytes: an `int` would be the caller's, a `bool` its first byte.
    Word(u32),
    Long(u64),
    Flag(bool),
}

impl Value {
    fn put(self, data: u64) -> Answer {
        match self {
            Self::Word(value) => out_at(data).put(value),
            Self::Long(value) => out_at(data).put(value),
            Self::Flag(value) => out_at(data).put(u8::from(value)),
        }
    }

    fn zero(self) -> Self {
        match self {
            Self::Word(_) => Self::Word(0),
            Self::Long(_) => Self::Long(0),
            Self::Flag(_) => Self::Flag(false),
        }
    }
}

/// Value of an attribute; none where it has none for such a pointer.
fn value(allocation: &Allocation, attribute: u32, pointer: u64) -> Option<Value> {
    let (host, managed) = (allocation.is_host(), allocation.managed().is_some());
    let pool = match allocation.kind {
        Kind::Pooled { pool, .. } => pool,
        Kind::Device | Kind::Managed(_) | Kind::Host { .. } | Kind::Elsewhere => 0,
    };
    Some(match attribute {
        1 => Value::Long(allocation.context),
        2 => Value::Word(if host { HOST } else { DEVICE }),
        3 => Value::Long(pointer),
        4 if host || managed => Value::Long(pointer),
        SYNC_MEMOPS | 21 => Value::Flag(false),
        7 | 20 => Value::Long(allocation.id),
        8 => Value::Flag(managed),
        9 | 22 => Value::Word(u32::try_from(allocation.device).unwrap_or(0)),
        10 => Value::Flag(matches!(allocation.kind, Kind::Device)),
        11 | 19 => Value::Long(allocation.base),
        12 | 18 => Value::Long(allocation.bytes),
        13 => Value::Flag(true),
        14 => Value::Long(0),
        15 => Value::Flag(matches!(allocation.kind, Kind::Device)),
        // Readable and writable.
        16 => Value::Word(3),
        17 => Value::Long(pool),
        _ => return None,
    })
}

fn attribute(data: u64, attribute: u32, pointer: u64) -> Answer {
    let objects = objects()?;
    if data == 0 || attribute == 0 || attribute > LAST {
        return Err(Error::INVALID_VALUE);
    }
    let found = objects.allocations.at(pointer).ok_or(Error::INVALID_VALUE)?;
    value(found, attribute, pointer).ok_or(Error::INVALID_VALUE)?.put(data)
}

/// Attributes of a pointer: 0 and success for an unknown pointer, and for an attribute without a value.
fn attributes(count: u32, attributes: In<u32>, data: In<u64>, pointer: u64) -> Answer {
    let objects = objects()?;
    let (attributes, data) = (attributes.get_all(count as usize)?, data.get_all(count as usize)?);
    if count == 0 || attributes.iter().any(|attribute| *attribute == 0 || *attribute > LAST) {
        return Err(Error::INVALID_VALUE);
    }
    let nobody = Allocation {
        base: 0,
        bytes: 0,
        context: 0 as Handle,
        device: 0,
        charged: 0,
        id: 0,
        region: None,
        kind: Kind::Host { flags: 0, registered: true },
    };
    for (attribute, data) in attributes.into_iter().zip(data) {
        let found = objects.allocations.at(pointer);
        let known = found.and_then(|found| value(found, attribute, pointer));
        let absent = || match attribute {
            // No device.
            9 => Value::Word(u32::MAX - 1),
            _ => value(&nobody, attribute, 0).map_or(Value::Long(0), Value::zero),
        };
        known.unwrap_or_else(absent).put(data)?;
    }
    Ok(())
}

/// Synchronous memory operations are what the simulator has anyway.
fn set_attribute(value: In<u32>, attribute: u32, pointer: u64) -> Answer {
    let mut objects = objects()?;
    value.get()?;
    objects.allocation(pointer)?;
    if attribute == SYNC_MEMOPS { Ok(()) } else { Err(Error::INVALID_VALUE) }
}
