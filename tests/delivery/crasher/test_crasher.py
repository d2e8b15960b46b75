"""Every process is killed once. `script/test --campaign delivery` does it at random, for as long as requested."""

from pathlib import Path

import pytest

from tests.delivery.crasher.campaign import crash_and_check
from tests.delivery.crasher.killers import Scripted
from tests.delivery.crasher.system import System
from tests.support.java import need_spark

pytestmark = [pytest.mark.spark, pytest.mark.process]

SCRIPT = ((0.05, "north"), (0.1, "first"), (0.15, "worker"), (0.2, "driver"))


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    need_spark()


def test_every_message_is_at_the_sinks_once_after_source_sink_worker_and_driver_were_killed(tmp_path: Path) -> None:
    with System(tmp_path, "copy", messages=1000, rate=100.0) as system:
        crash_and_check(system, Scripted(SCRIPT))
        assert {name for name, kills in system.kills().items() if kills} == {part for _, part in SCRIPT}
