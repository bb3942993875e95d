"""`nvidia-ml-py`, unmodified: what NVML says of the device beside what the driver says to the same process."""

import os

import pynvml
import pytest
from conftest import MIB
from cuda.bindings import driver


@pytest.fixture(autouse=True)
def nvml():
    pynvml.nvmlInit()
    yield
    pynvml.nvmlShutdown()


def test_the_device():
    assert pynvml.nvmlDeviceGetCount() == 1
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    assert uuid.startswith("GPU-") and len(uuid) == 40
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == pynvml.nvmlDeviceGetName(handle)
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == 0
    assert pynvml.nvmlDeviceGetIndex(handle) == 0
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 0
    assert pynvml.nvmlSystemGetCudaDriverVersion() == driver.cuDriverGetVersion()[1]
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0


def test_requested_devices_must_exist():
    for ask in [lambda: pynvml.nvmlDeviceGetHandleByIndex(1), lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-no")]:
        with pytest.raises(pynvml.NVMLError):
            ask()


def test_memory_is_the_instance_s(total):
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert driver.cuInit(0)[0] == 0
    context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1]
    assert driver.cuCtxSetCurrent(context)[0] == 0
    before = pynvml.nvmlDeviceGetMemoryInfo(handle)
    status, address = driver.cuMemAlloc(64 * MIB)
    assert status == 0
    for version in [None, pynvml.nvmlMemory_v2]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
        assert memory.total == total
        assert memory.used - before.used == 64 * MIB
        assert memory.free == total - memory.used == driver.cuMemGetInfo()[1]
    assert driver.cuMemFree(address)[0] == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == before.used


def test_this_process_is_on_the_list():
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert driver.cuInit(0)[0] == 0
    assert driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])[0] == 0
    for ask in [pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetComputeRunningProcesses_v2]:
        assert [process.pid for process in ask(handle)] == [os.getpid()]
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []


def test_queries_of_monitors():
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert 0 < pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) < 100
    assert 0 < pynvml.nvmlDeviceGetPowerUsage(handle) < pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    assert 0 < clock <= pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 1
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
    assert pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used == 0
    assert pynvml.nvmlDeviceGetEncoderUtilization(handle)[0] == 0
    assert os.path.basename(pynvml.nvmlSystemGetProcessName(os.getpid())).startswith("python")
    for absent in (pynvml.nvmlDeviceGetSerial, pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetEccMode):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            absent(handle)
