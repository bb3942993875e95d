"""The fixture that numba-cuda's tests ask for and its package does not ship: a plugin of pytest."""

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
