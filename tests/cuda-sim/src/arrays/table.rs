//! The arrays of this process. One lock, taken after that of [`crate::objects`].

use super::format::Unit;
use super::shape::Shape;
use crate::abi::Handle;
use crate::backing::Region;
use crate::error::Error;
use crate::memory::residency;
use crate::objects::Objects;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) arrays: HashMap<Handle, Array>,
    pub(super) mipmaps: HashMap<Handle, Mipmap>,
    /// Texture and surface objects.
    pub(super) objects: HashMap<Handle, super::objects::Object>,
}

/// An array, a level of a mipmap, or a plane.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) shape: Shape,
    pub(super) unit: Unit,
    /// Address of its elements.
    pub(super) base: u64,
    /// Distance of its rows in bytes: a plane may have longer rows around it than its own.
    pub(super) pitch: u64,
    pub(super) device: usize,
    pub(super) context: Handle,
    /// Memory; none for a level or a plane, whose parent has it.
    _memory: Option<Held>,
    /// The mipmap or array that it is a part of.
    pub(super) parent: Option<Handle>,
}

/// Several arrays, each half as large as the one before.
#[derive(Debug)]
pub(super) struct Mipmap {
    pub(super) shape: Shape,
    pub(super) levels: Vec<Handle>,
    pub(super) device: usize,
    context: Handle,
    _memory: Option<Held>,
}

/// Memory, and what it takes of a card; given back at the end.
#[derive(Debug)]
struct Held {
    _region: Region,
    device: usize,
    charged: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.charged > 0 {
            residency::release(self.device, self.charged);
        }
    }
}

/// An array as copies see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) base: u64,
    /// Bytes from one row to the next.
    pub(crate) pitch: u64,
    /// Bytes of a row that are its own.
    pub(crate) width: u64,
    /// Rows of a slice.
    pub(crate) height: u64,
    pub(crate) slices: u64,
    /// Positions in a row are multiples of this.
    pub(crate) element: u64,
    pub(crate) device: usize,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

pub(super) fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An array for copies.
///
/// # Errors
/// No such array.
pub(crate) fn rows(array: Handle) -> Result<Rows, Error> {
    let table = table();
    let Array { shape, unit, base, pitch, device, .. } = *table.array(array)?;
    let (width, height, slices) = shape.rows(unit);
    Ok(Rows { base, pitch, width, height, slices, element: unit.bytes, device })
}

/// Ends a context with all its arrays.
pub(crate) fn end_context(context: Handle) {
    let mut table = table();
    table.arrays.retain(|_, array| array.context != context);
    table.mipmaps.retain(|_, mipmap| mipmap.context != context);
    table.objects.retain(|_, object| object.context != context);
}

/// Bytes of so many levels.
///
/// # Errors
/// When there are no such arrays.
pub(crate) fn bytes(shape: Shape, levels: u32) -> Result<u64, Error> {
    let unit = shape.check()?;
    Ok((0..levels.clamp(1, shape.most_levels())).map(|level| shape.level(level).bytes(unit)).sum())
}

/// A mipmapped array over memory that is charged elsewhere, and large enough (see [`bytes`]).
///
/// # Errors
/// When there are no such arrays.
pub(crate) fn adopt(objects: &mut Objects, shape: Shape, levels: u32, region: Region) -> Result<Handle, Error> {
    let (context, device) = objects.current()?;
    shape.check()?;
    let (levels, base) = (levels.clamp(1, shape.most_levels()), region.base());
    let _memory = Some(Held { _region: region, device, charged: 0 });
    Ok(table().add_levels(objects, Mipmap { shape, levels: Vec::new(), device, context, _memory }, levels, base))
}

impl Table {
    pub(super) fn array(&self, array: Handle) -> Result<&Array, Error> {
        self.arrays.get(&array).ok_or(Error::INVALID_HANDLE)
    }

    /// A new array in the current context. Answers when there was room for it.
    ///
    /// # Errors
    /// No context, no such arrays, or no room.
    pub(super) fn create(&mut self, objects: &mut Objects, shape: Shape) -> Result<(Handle, u64), Error> {
        let (context, device) = objects.current()?;
        let unit = shape.check()?;
        let (held, base, ready) = hold(objects, device, shape.bytes(unit), shape.has_memory())?;
        let (_memory, pitch) = (Some(held), shape.rows(unit).0);
        let handle = objects.handle();
        self.arrays.insert(handle, Array { shape, unit, base, pitch, device, context, _memory, parent: None });
        Ok((handle, ready))
    }

    /// As [`Self::create`], with levels.
    pub(super) fn create_levels(
        &mut self,
        objects: &mut Objects,
        shape: Shape,
        levels: u32,
    ) -> Result<(Handle, u64), Error> {
        let (context, device) = objects.current()?;
        let (held, base, ready) = hold(objects, device, bytes(shape, levels)?, shape.has_memory())?;
        let levels = levels.clamp(1, shape.most_levels());
        let mipmap = Mipmap { shape, levels: Vec::new(), device, context, _memory: Some(held) };
        Ok((self.add_levels(objects, mipmap, levels, base), ready))
    }

    fn add_levels(&mut self, objects: &mut Objects, mut mipmap: Mipmap, levels: u32, base: u64) -> Handle {
        let (parent, device, context) = (objects.handle(), mipmap.device, mipmap.context);
        let Ok(unit) = Unit::of(mipmap.shape.format, mipmap.shape.channels) else { return 0 };
        let mut base = base;
        for level in 0..levels {
            let (shape, handle) = (mipmap.shape.level(level), objects.handle());
            let (pitch, parent) = (shape.rows(unit).0, Some(parent));
            self.arrays.insert(handle, Array { shape, unit, base, pitch, device, context, _memory: None, parent });
            mipmap.levels.push(handle);
            base += shape.bytes(unit);
        }
        self.mipmaps.insert(parent, mipmap);
        parent
    }

    /// A part of an array as an array of its own; the same handle each time.
    pub(super) fn part(&mut self, objects: &mut Objects, of: Handle, shape: Shape, skip: u64) -> Result<Handle, Error> {
        let unit = shape.check()?;
        let Array { base, pitch, device, context, .. } = *self.array(of)?;
        let base = base + skip;
        let known = self.arrays.iter().find(|(_, part)| part.parent == Some(of) && part.base == base);
        if let Some((handle, _)) = known {
            return Ok(*handle);
        }
        let handle = objects.handle();
        let parent = Some(of);
        self.arrays.insert(handle, Array { shape, unit, base, pitch, device, context, _memory: None, parent });
        Ok(handle)
    }

    /// # Errors
    /// No such array, or a part of something else.
    pub(super) fn destroy(&mut self, array: Handle) -> Result<(), Error> {
        if self.array(array)?.parent.is_some() {
            return Err(Error::INVALID_HANDLE);
        }
        self.arrays.retain(|handle, other| *handle != array && other.parent != Some(array));
        Ok(())
    }

    /// # Errors
    /// No such mipmap.
    pub(super) fn destroy_levels(&mut self, mipmap: Handle) -> Result<(), Error> {
        self.mipmaps.remove(&mipmap).ok_or(Error::INVALID_HANDLE)?;
        self.arrays.retain(|_, array| array.parent != Some(mipmap));
        Ok(())
    }
}

fn hold(objects: &mut Objects, device: usize, bytes: u64, charges: bool) -> Result<(Held, u64, u64), Error> {
    let charged = if charges { bytes } else { 0 };
    let ready = if charges { residency::charge(&mut objects.allocations, device, bytes)? } else { 0 };
    let region = Region::new(bytes).inspect_err(|_| residency::release(device, charged))?;
    let base = region.base();
    Ok((Held { _region: region, device, charged }, base, ready))
}
