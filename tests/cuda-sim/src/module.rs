//! Modules, libraries, functions, kernels. Any image is a module, any name is a function in it, and none of them runs.
#![allow(clippy::too_many_arguments, reason = "the API's own argument lists")]

use crate::abi::{Handle, In, Out, api};
use crate::error::{Answer, Error};
use crate::machine;
use crate::objects::{Objects, objects};
use std::ffi::{CString, c_char};
use std::path::Path;

api! {
    fn cuModuleLoad(module: Out<Handle>, path: In<c_char>) = load_file;
    fn cuModuleLoadData(module: Out<Handle>, image: In<u8>) = load;
    fn cuModuleLoadDataEx(module: Out<Handle>, image: In<u8>, count: u32, options: u64, values: u64) = load_with_options;
    fn cuModuleLoadFatBinary(module: Out<Handle>, image: In<u8>) = load;
    fn cuModuleUnload(module: Handle) = unload;
    fn cuModuleGetLoadingMode(mode: Out<u32>) = loading_mode;
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: In<c_char>) = function;
    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) = function_count;
    fn cuModuleGetGlobal_v2(pointer: Out<u64>, bytes: Out<usize>, module: Handle, name: In<c_char>) = no_global;
    fn cuLibraryLoadData(
        library: Out<Handle>, image: In<u8>, options: u64, values: u64, count: u32, more: u64, more_values: u64,
        more_count: u32,
    ) = load_library;
    fn cuLibraryLoadFromFile(
        library: Out<Handle>, path: In<c_char>, options: u64, values: u64, count: u32, more: u64, more_values: u64,
        more_count: u32,
    ) = load_library_file;
    fn cuLibraryUnload(library: Handle) = unload_library;
    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: In<c_char>) = kernel;
    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) = function_count;
    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) = module_of_library;
    fn cuLibraryGetGlobal(pointer: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>) = no_global;
    fn cuLibraryGetManaged(pointer: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>) = no_global;
    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) = function_of_kernel;
    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) = parent;
    fn cuKernelGetName(name: Out<u64>, kernel: Handle) = name_of;
    fn cuFuncGetModule(module: Out<Handle>, function: Handle) = parent;
    fn cuFuncGetName(name: Out<u64>, function: Handle) = name_of;
    fn cuFuncLoad(function: Handle) = load_function;
    fn cuFuncIsLoaded(state: Out<u32>, function: Handle) = is_loaded;
}

/// A module or a library, or what is in one.
#[derive(Debug)]
pub(crate) enum Code {
    /// Loaded in a context.
    Module { context: Handle },
    /// Loaded in none.
    Library,
    /// `parent` is a module, or a library (a kernel). Both can be launched.
    Function { parent: Handle, name: CString },
}

impl Objects {
    /// # Errors
    /// No function, no kernel.
    pub(crate) fn function(&self, function: Handle) -> Result<(Handle, &CString), Error> {
        match self.code.get(&function) {
            Some(Code::Function { parent, name }) => Ok((*parent, name)),
            Some(Code::Module { .. } | Code::Library) | None => Err(Error::INVALID_HANDLE),
        }
    }

    fn add_code(&mut self, code: Code) -> Handle {
        let made = self.handle();
        self.code.insert(made, code);
        made
    }

    /// Function of a name, always with the same handle.
    fn function_in(&mut self, parent: Handle, wanted: &str) -> Result<Handle, Error> {
        let wanted = CString::new(wanted).map_err(|_| Error::INVALID_VALUE)?;
        let same =
            |code: &Code| matches!(code, Code::Function { parent: of, name } if *of == parent && *name == wanted);
        if wanted.is_empty() {
            return Err(Error::NOT_FOUND);
        }
        let known = self.code.iter().find(|(_, code)| same(code)).map(|(handle, _)| *handle);
        Ok(known.unwrap_or_else(|| self.add_code(Code::Function { parent, name: wanted })))
    }

    fn forget_code(&mut self, parent: Handle) {
        self.code.retain(|handle, code| {
            *handle != parent && !matches!(code, Code::Function { parent: of, .. } if *of == parent)
        });
    }

    fn module(&self, module: Handle) -> Answer {
        let is_module = matches!(self.code.get(&module), Some(Code::Module { .. }));
        if is_module { Ok(()) } else { Err(Error::INVALID_HANDLE) }
    }

    fn library(&self, library: Handle) -> Answer {
        let is_library = matches!(self.code.get(&library), Some(Code::Library));
        if is_library { Ok(()) } else { Err(Error::INVALID_HANDLE) }
    }

    /// Modules of a context that ends.
    pub(crate) fn forget_code_of(&mut self, context: Handle) {
        let own = |code: &Code| matches!(code, Code::Module { context: of } if *of == context);
        let modules: Vec<Handle> = self.code.iter().filter(|(_, code)| own(code)).map(|(handle, _)| *handle).collect();
        modules.into_iter().for_each(|module| self.forget_code(module));
    }
}

fn load(module: Out<Handle>, image: In<u8>) -> Answer {
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    module.check()?;
    if image.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    module.put(objects.add_code(Code::Module { context }))
}

fn load_with_options(module: Out<Handle>, image: In<u8>, _count: u32, _options: u64, _values: u64) -> Answer {
    load(module, image)
}

fn load_file(module: Out<Handle>, path: In<c_char>) -> Answer {
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    module.check()?;
    exists(path)?;
    module.put(objects.add_code(Code::Module { context }))
}

fn exists(path: In<c_char>) -> Answer {
    if Path::new(&path.text()?).is_file() { Ok(()) } else { Err(Error::FILE_NOT_FOUND) }
}

fn unload(module: Handle) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    objects.module(module)?;
    objects.forget_code(module);
    Ok(())
}

/// Lazy.
fn loading_mode(mode: Out<u32>) -> Answer {
    machine::all()?;
    mode.put(2)
}

fn function(function: Out<Handle>, module: Handle, name: In<c_char>) -> Answer {
    let mut objects = objects()?;
    objects.current()?;
    function.check()?;
    objects.module(module)?;
    function.put(objects.function_in(module, &name.text()?)?)
}

/// Not counted: the image is never read.
fn function_count(count: Out<u32>, parent: Handle) -> Answer {
    objects()?.code.get(&parent).ok_or(Error::INVALID_HANDLE)?;
    count.put(0)
}

/// Nor knows its variables.
fn no_global(_pointer: Out<u64>, _bytes: Out<usize>, parent: Handle, name: In<c_char>) -> Answer {
    objects()?.code.get(&parent).ok_or(Error::INVALID_HANDLE)?;
    name.text()?;
    Err(Error::NOT_FOUND)
}

fn load_library(
    library: Out<Handle>,
    image: In<u8>,
    _options: u64,
    _values: u64,
    _count: u32,
    _more: u64,
    _more_values: u64,
    _more_count: u32,
) -> Answer {
    let mut objects = objects()?;
    library.check()?;
    if image.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    library.put(objects.add_code(Code::Library))
}

fn load_library_file(
    library: Out<Handle>,
    path: In<c_char>,
    _options: u64,
    _values: u64,
    _count: u32,
    _more: u64,
    _more_values: u64,
    _more_count: u32,
) -> Answer {
    let mut objects = objects()?;
    library.check()?;
    exists(path)?;
    library.put(objects.add_code(Code::Library))
}

fn unload_library(library: Handle) -> Answer {
    let mut objects = objects()?;
    objects.library(library)?;
    objects.forget_code(library);
    Ok(())
}

fn kernel(kernel: Out<Handle>, library: Handle, name: In<c_char>) -> Answer {
    let mut objects = objects()?;
    kernel.check()?;
    objects.library(library)?;
    kernel.put(objects.function_in(library, &name.text()?)?)
}

fn module_of_library(module: Out<Handle>, library: Handle) -> Answer {
    let mut objects = objects()?;
    let (context, _) = objects.current()?;
    module.check()?;
    objects.library(library)?;
    module.put(objects.add_code(Code::Module { context }))
}

/// A kernel is launched by its own handle.
fn function_of_kernel(function: Out<Handle>, kernel: Handle) -> Answer {
    let objects = objects()?;
    objects.current()?;
    objects.function(kernel)?;
    function.put(kernel)
}

fn parent(parent: Out<Handle>, function: Handle) -> Answer {
    parent.put(objects()?.function(function)?.0)
}

fn name_of(name: Out<u64>, function: Handle) -> Answer {
    name.put(objects()?.function(function)?.1.as_ptr().expose_provenance() as u64)
}

fn load_function(function: Handle) -> Answer {
    objects()?.function(function).map(drop)
}

fn is_loaded(state: Out<u32>, function: Handle) -> Answer {
    objects()?.function(function)?;
    state.put(1)
}
