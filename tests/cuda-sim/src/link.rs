//! Linking of code: the result is an image like any other, which no module reads.
#![allow(clippy::too_many_arguments, reason = "the API's own argument lists")]

use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::objects::objects;
use std::ffi::c_char;

api! {
    fn cuLinkCreate(count: u32, options: u64, values: u64, state: Out<Handle>) = create;
    fn cuLinkCreate_v2(count: u32, options: u64, values: u64, state: Out<Handle>) = create;
    fn cuLinkAddData(
        state: Handle, kind: u32, data: In<u8>, size: usize, name: In<c_char>, count: u32, options: u64, values: u64,
    ) = add_data;
    fn cuLinkAddData_v2(
        state: Handle, kind: u32, data: In<u8>, size: usize, name: In<c_char>, count: u32, options: u64, values: u64,
    ) = add_data;
    fn cuLinkAddFile(state: Handle, kind: u32, path: In<c_char>, count: u32, options: u64, values: u64) = add_file;
    fn cuLinkAddFile_v2(state: Handle, kind: u32, path: In<c_char>, count: u32, options: u64, values: u64) = add_file;
    fn cuLinkComplete(state: Handle, image: Out<u64>, size: Out<usize>) = complete;
    fn cuLinkDestroy(state: Handle) = destroy;
}

/// Image that every linker makes.
static IMAGE: &[u8] = b"simulated: nothing runs\0";
/// Kinds of input: the last of the API.
const LAST_KIND: u32 = 6;

fn create(_count: u32, _options: u64, _values: u64, state: Out<Handle>) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    state.check()?;
    let made = objects.handle();
    objects.linkers.insert(made);
    state.put(made)
}

fn known(state: Handle) -> Answer {
    if objects()?.linkers.contains(&state) { Ok(()) } else { Err(Error::INVALID_HANDLE) }
}

fn add_data(
    state: Handle,
    kind: u32,
    data: In<u8>,
    size: usize,
    _name: In<c_char>,
    _count: u32,
    _options: u64,
    _values: u64,
) -> Answer {
    known(state)?;
    if data.is_null() || size == 0 || kind > LAST_KIND { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

fn add_file(state: Handle, kind: u32, path: In<c_char>, _count: u32, _options: u64, _values: u64) -> Answer {
    known(state)?;
    if kind > LAST_KIND {
        return Err(Error::INVALID_VALUE);
    }
    if std::path::Path::new(&path.text()?).is_file() { Ok(()) } else { Err(Error::FILE_NOT_FOUND) }
}

fn complete(state: Handle, image: Out<u64>, size: Out<usize>) -> Answer {
    known(state)?;
    image.put(IMAGE.as_ptr().expose_provenance() as u64)?;
    size.put_if(IMAGE.len());
    Ok(())
}

fn destroy(state: Handle) -> Answer {
    if objects()?.linkers.remove(&state) { Ok(()) } else { Err(Error::INVALID_HANDLE) }
}
