//! Entries that are not simulated: the build finds out which, and each answers `CUDA_ERROR_NOT_SUPPORTED`.

use crate::abi::stubs;

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
