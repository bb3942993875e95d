"""Shared parts of the tests of GPU clients: this instance's limit, and the driver API without its tuples.

Run by `tests/gpu/gpu_clients.rs` on the simulated driver, without and with the shim. It says in OMNI_TEST_TOTAL how
many bytes a client must see as its device's memory: the card's without the shim, the instance's limit with it.
"""

import os

import pytest

MIB = 1 << 20


@pytest.fixture
def total():
    """Bytes of device memory that this instance sees."""
    return int(os.environ["OMNI_TEST_TOTAL"])
