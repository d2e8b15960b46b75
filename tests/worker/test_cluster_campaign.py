"""A short run of the campaign against a cluster."""

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.testing.seaweedfs import SeaweedFS
from tests.support.store_proxy import store_proxy
from tests.worker.cluster_campaign import HOSTS, run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_message_is_stored_once_whatever_happens_to_hosts_processes_and_their_network(
    tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS
) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(store_proxy(seaweedfs.endpoint)) for _ in range(HOSTS)]
        assert "once and in order" in run(tmp_path, s3_url, Random(4), 12.0, proxies)
