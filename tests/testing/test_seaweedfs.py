"""The object store of the tests: it keeps what it has acknowledged, however it ends."""

from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.core.errors import BucketUnreachable
from penstock.testing.seaweedfs import SeaweedFS


@pytest.mark.process
def test_what_it_has_acknowledged_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SeaweedFS(tmp_path / "seaweedfs") as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        bucket = open_bucket(store.url("x"))
        for number in range(50):
            bucket.create(str(number), [b"%d" % number])
        store.kill()
        with pytest.raises(BucketUnreachable):
            bucket.get("0")
        store.start()
        for number in range(50):
            assert bucket.get(str(number)).data == b"%d" % number
    assert not (tmp_path / "seaweedfs").exists()
