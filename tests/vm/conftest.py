"""What all tests in guests have in common."""

from __future__ import annotations

import image
import pytest
from vm import Guest


@pytest.fixture(scope="session", params=image.RELEASES)
def guest(request: pytest.FixtureRequest) -> Guest:
    """Each guest, made when it is not there."""
    return Guest(request.param)
