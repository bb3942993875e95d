//! A double of `libcuda.so.1` and `libnvidia-ml.so.1`: the documented API over host memory. Kernels do not run.
