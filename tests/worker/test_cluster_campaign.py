"""A short run of the campaign against a cluster."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.java import find_java
from penstock.testing.seaweedfs import SeaweedFS
from tests.support.store_proxy import store_proxy
from tests.worker.cluster_campaign import EACH_FAULT, FAULTS_OF_SPARK, HOSTS, run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def test_every_message_is_stored_and_delivered_once_whatever_happens_to_hosts_processes_and_their_network(
    tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS
) -> None:
    """Without Spark, if it cannot run here: then every message is stored once."""
    try:
        find_java()
        spark = True
    except RequestError:
        spark = False
    with ExitStack() as stack:
        proxies = [stack.enter_context(store_proxy(seaweedfs.endpoint)) for _ in range(HOSTS)]
        said = run(tmp_path, s3_url, Random(4), None, proxies, spark=spark)
    assert "once and in order" in said
    assert ("in the sinks" in said) == spark
    for kind, count in Counter((*EACH_FAULT, *(FAULTS_OF_SPARK if spark else ()))).items():
        assert f"{count} {kind}" in said
