"""A short run of the campaign against a cluster."""

from pathlib import Path
from random import Random

import pytest

from tests.worker.cluster_campaign import run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_message_is_stored_once_whatever_happens_to_hosts_and_processes(tmp_path: Path) -> None:
    assert "once and in order" in run(tmp_path, (tmp_path / "bucket").as_uri(), Random(4), 25.0)
