//! `libomni_cuda.so`: preloaded into GPU models, it limits, accounts and moves their GPU memory.

mod process;
mod ranges;
