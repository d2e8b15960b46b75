"""An application whose journal is in a bucket goes on, on another machine, where the dead one has stopped."""

from pathlib import Path
from random import Random

import pytest

from tests.application.moved_run import kill_and_move
from tests.support.java import need_spark

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1500)]

SEED = 7


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    need_spark()


def test_after_a_kill_the_run_in_another_empty_directory_continues_and_every_window_is_committed_once(
    tmp_path: Path, s3_url: str
) -> None:
    kill_and_move(tmp_path, s3_url, 1, Random(SEED))
