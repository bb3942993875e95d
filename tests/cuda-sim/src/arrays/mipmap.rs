//! Mipmapped arrays: made, asked about, destroyed.

use super::create::{Requirements, Sparse};
use super::format::Unit;
use super::shape::{DEFERRED, SPARSE, Shape};
use super::table::{Mipmap, Table, table};
use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::objects::objects;
use crate::time;

api! {
    fn cuMipmappedArrayCreate(mipmap: Out<Handle>, shape: In<Shape>, levels: u32) = create;
    fn cuMipmappedArrayGetLevel(array: Out<Handle>, mipmap: Handle, level: u32) = level;
    fn cuMipmappedArrayGetMemoryRequirements(needs: Out<Requirements>, mipmap: Handle, device: i32) = requirements;
    fn cuMipmappedArrayGetSparseProperties(properties: Out<Sparse>, mipmap: Handle) = sparse;
    fn cuMipmappedArrayDestroy(mipmap: Handle) = destroy;
}

fn create(mipmap: Out<Handle>, shape: In<Shape>, levels: u32) -> Answer {
    mipmap.check()?;
    let shape = shape.get()?;
    let mut objects = objects()?;
    let (handle, ready) = table().create_levels(&mut objects, shape, levels)?;
    drop(objects);
    time::wait(ready);
    mipmap.put(handle)
}

fn of(table: &Table, mipmap: Handle) -> Result<&Mipmap, Error> {
    table.mipmaps.get(&mipmap).ok_or(Error::INVALID_HANDLE)
}

fn level(array: Out<Handle>, mipmap: Handle, level: u32) -> Answer {
    array.check()?;
    let table = table();
    let found = of(&table, mipmap)?.levels.get(level as usize);
    array.put(*found.ok_or(Error::INVALID_VALUE)?)
}

fn requirements(needs: Out<Requirements>, mipmap: Handle, device: i32) -> Answer {
    needs.check()?;
    machine::device(device)?;
    let table = table();
    let Mipmap { shape, levels, .. } = of(&table, mipmap)?;
    if shape.flags & DEFERRED == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let bytes = levels.iter().filter_map(|level| table.arrays.get(level)).map(|array| array.shape.bytes(array.unit));
    needs.put(Requirements::of(bytes.sum()))
}

fn sparse(properties: Out<Sparse>, mipmap: Handle) -> Answer {
    properties.check()?;
    machine::all()?;
    let table = table();
    let shape = of(&table, mipmap)?.shape;
    if shape.flags & SPARSE == 0 {
        return Err(Error::INVALID_VALUE);
    }
    properties.put(Sparse::of(Unit::of(shape.format, shape.channels)?.bytes))
}

fn destroy(mipmap: Handle) -> Answer {
    let objects = objects()?;
    objects.current()?;
    table().destroy_levels(mipmap)
}
