"""A bucket that several processes can use, of each kind."""

import pytest

from tests.bucket.conftest import SHARED, new_url


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest) -> str:
    return new_url(str(request.param), request)
