"""The worker is killed under load, and goes on on another machine; `script/test --campaign bucket` does it 50 times."""

from pathlib import Path
from random import Random, SystemRandom

import pytest

from penstock.testing.seaweedfs import SeaweedFS
from tests.worker.bucket_kills import kill_stores, kill_workers

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLS = 3


def test_after_kills_every_acked_message_is_stored_once_in_order_and_the_bucket_has_nothing_that_nobody_needs(
    tmp_path: Path, s3_url: str
) -> None:
    seed = SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    kill_workers(tmp_path, s3_url, KILLS, Random(seed))


def test_while_the_store_is_away_appends_wait_and_the_status_names_it_and_nothing_is_lost(
    tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS
) -> None:
    seed = SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    kill_stores(tmp_path, seaweedfs, s3_url.removeprefix(seaweedfs.url("")), 2, Random(seed))
