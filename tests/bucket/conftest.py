"""One bucket of each kind. All kinds pass the same tests."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket

PROCESS = pytest.mark.process
SHARED = ["file", pytest.param("s3", marks=PROCESS)]
"""Kinds that several processes can use."""

KINDS = [*SHARED, "memory"]

OpenAgain = Callable[[], Bucket]


def new_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Of an empty bucket."""
    if kind == "s3":
        url: str = request.getfixturevalue("s3_url")
        return url
    if kind == "file":
        folder: Path = request.getfixturevalue("tmp_path")
        return (folder / "a bucket").as_uri()
    return f"memory://{uuid4().hex}/prefix"


@pytest.fixture(params=KINDS)
def open_again(request: pytest.FixtureRequest) -> OpenAgain:
    """Opens the test's bucket, each time as another client would."""
    url = new_url(request.param, request)
    return lambda: open_bucket(url)


@pytest.fixture
def bucket(open_again: OpenAgain) -> Bucket:
    return open_again()


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest) -> str:
    return new_url(request.param, request)
