"""`numba-cuda`, unmodified: context, copies both ways, managed arrays, streams. No kernels: the simulator runs none."""

import numpy
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

SIZE = 1 << 20


def test_memory_is_the_instance_s(total):
    information = cuda.current_context().get_memory_info()
    assert information.total == total
    assert 0 < information.free <= total


def test_copies():
    data = numpy.arange(SIZE, dtype=numpy.int32)
    before = cuda.current_context().get_memory_info().free
    there = cuda.to_device(data)
    assert before - cuda.current_context().get_memory_info().free >= data.nbytes
    assert (there.copy_to_host() == data).all()
    there[100:200].copy_to_device(numpy.zeros(100, dtype=numpy.int32))
    back = there.copy_to_host()
    assert back[100:200].sum() == 0 and back[200] == 200
    again = cuda.device_array_like(there)
    again.copy_to_device(there)
    assert (again.copy_to_host() == back).all()


def test_streams():
    stream = cuda.stream()
    pinned = cuda.pinned_array(SIZE, dtype=numpy.float64)
    pinned[:] = numpy.linspace(0, 1, SIZE)
    there = cuda.to_device(pinned, stream=stream)
    back = numpy.empty(SIZE)
    there.copy_to_host(back, stream=stream)
    stream.synchronize()
    assert (back == pinned).all()


def test_managed():
    array = cuda.managed_array(SIZE, dtype=numpy.uint8)
    array[:] = 7
    assert int(array.sum()) == 7 * SIZE
    there = cuda.device_array(SIZE, dtype=numpy.uint8)
    there.copy_to_device(numpy.asarray(array))
    assert (there.copy_to_host() == 7).all()


def test_more_than_there_is(total):
    with pytest.raises(CudaAPIError, match="OUT_OF_MEMORY"):
        cuda.device_array(total + 1, dtype=numpy.uint8)
