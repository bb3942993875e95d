//! Texture and surface objects: what they were made of, and nothing more.

use super::table::table;
use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::objects::objects;

api! {
    fn cuTexObjectCreate(object: Out<Handle>, resource: In<Resource>, texture: In<Texture>, view: In<View>) = texture;
    fn cuTexObjectDestroy(object: Handle) = destroy;
    fn cuTexObjectGetResourceDesc(resource: Out<Resource>, object: Handle) = resource_of;
    fn cuTexObjectGetTextureDesc(texture: Out<Texture>, object: Handle) = texture_of;
    fn cuTexObjectGetResourceViewDesc(view: Out<View>, object: Handle) = view_of;
    fn cuSurfObjectCreate(object: Out<Handle>, resource: In<Resource>) = surface;
    fn cuSurfObjectDestroy(object: Handle) = destroy;
    fn cuSurfObjectGetResourceDesc(resource: Out<Resource>, object: Handle) = resource_of;
}

/// `CUDA_RESOURCE_DESC`: its kind, then a union whose first word is an array, a mipmap or an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    kind: u32,
    _padding: u32,
    target: u64,
    rest: [u64; 15],
    flags: u64,
}

/// `CUDA_TEXTURE_DESC`.
type Texture = [u32; 26];
/// `CUDA_RESOURCE_VIEW_DESC`.
type View = [u64; 14];

const _: () = assert!(size_of::<Resource>() == 144 && size_of::<Texture>() == 104 && size_of::<View>() == 112);

/// `CUresourcetype`.
const ARRAY: u32 = 0;
const MIPMAP: u32 = 1;
const LINEAR: u32 = 2;
const PITCHED: u32 = 3;

/// A texture object, or a surface object, which has neither texture nor view.
#[derive(Debug)]
pub(super) struct Object {
    resource: Resource,
    texture: Option<Texture>,
    view: Option<View>,
    pub(super) context: Handle,
}

fn texture(object: Out<Handle>, resource: In<Resource>, texture: In<Texture>, view: In<View>) -> Answer {
    let texture = Some(texture.get()?);
    let view = if view.is_null() { None } else { Some(view.get()?) };
    make(object, resource.get()?, texture, view)
}

/// Surfaces are made of arrays only.
fn surface(object: Out<Handle>, resource: In<Resource>) -> Answer {
    let resource = resource.get()?;
    if resource.kind == ARRAY { make(object, resource, None, None) } else { Err(Error::INVALID_VALUE) }
}

fn make(object: Out<Handle>, resource: Resource, texture: Option<Texture>, view: Option<View>) -> Answer {
    object.check()?;
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    let mut table = table();
    let is_there = match resource.kind {
        ARRAY => table.arrays.contains_key(&resource.target),
        MIPMAP => table.mipmaps.contains_key(&resource.target),
        LINEAR | PITCHED => objects.allocations.at(resource.target).is_some(),
        _ => false,
    };
    if !is_there {
        return Err(Error::INVALID_VALUE);
    }
    let handle = objects.handle();
    table.objects.insert(handle, Object { resource, texture, view, context });
    object.put(handle)
}

fn destroy(object: Handle) -> Answer {
    machine::all()?;
    table().objects.remove(&object).map(drop).ok_or(Error::INVALID_VALUE)
}

fn of<T>(object: Handle, part: impl FnOnce(&Object) -> Option<T>) -> Result<T, Error> {
    machine::all()?;
    table().objects.get(&object).and_then(part).ok_or(Error::INVALID_VALUE)
}

fn resource_of(resource: Out<Resource>, object: Handle) -> Answer {
    resource.put(of(object, |object| Some(object.resource))?)
}

fn texture_of(texture: Out<Texture>, object: Handle) -> Answer {
    texture.put(of(object, |object| object.texture)?)
}

fn view_of(view: Out<View>, object: Handle) -> Answer {
    view.put(of(object, |object| object.view)?)
}
