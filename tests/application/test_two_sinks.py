"""Two sinks of which one is down: who waits, what is retained, what arrives when it is back. Real sockets and
processes.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.application.deployments import deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import dialling, killed_scene, listening
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.process


def numbered(name: str, first: int, last: int) -> list[str]:
    return [f"{name} {number}" for number in range(first, last + 1)]


@pytest.mark.parametrize("per_stream", [False, True], ids=["one connection", "a connection for each stream"])
def test_only_streams_that_lead_to_the_sink_that_is_down_wait(tmp_path: Path, per_stream: bool) -> None:
    both_port, one_port = free_port(), free_port()
    with Taker() as well, Taker(up=False) as ill:
        deployment = deployed(
            listening("to-both", both_port),
            listening("to-one", one_port),
            dialling("well", well.port, per_stream=per_stream),
            dialling("ill", ill.port, per_stream=per_stream),
            pipeline("wide"),
            pipeline("narrow"),
            link("connector/to-both/out", "pipeline/wide/in"),
            link("connector/to-one/out", "pipeline/narrow/in"),
            link("pipeline/wide/out", "connector/well/in"),
            link("pipeline/wide/out", "connector/ill/in"),
            link("pipeline/narrow/out", "connector/well/in"),
        )
        with killed_scene(tmp_path / "data", deployment) as scene:
            scene.until_listens("to-both", "to-one", "well")
            with Sender(both_port) as first, Sender(both_port) as second, Sender(one_port) as other:
                first.send(*numbered("first", 1, 50))
                second.send(*numbered("second", 1, 50))
                other.send(*numbered("other", 1, 50))
                until(lambda: set(well.lines) >= {*numbered("other", 1, 50)})
                until(lambda: scene.waiting() == {"to-both": 2})
                assert not any(line.startswith(("first", "second")) for line in well.lines), "they may not send yet"
                ill.up()
                until(lambda: len(ill.lines) >= 100 and len(well.lines) >= 150)
                assert scene.waiting() == {}
                assert Counter(ill.lines) == Counter(numbered("first", 1, 50) + numbered("second", 1, 50))
                assert Counter(well.lines) == Counter(ill.lines + numbered("other", 1, 50))
                for name in ("first", "second"):
                    assert [line for line in ill.lines if line.startswith(name)] == numbered(name, 1, 50)


@pytest.mark.parametrize("per_stream", [False, True], ids=["one connection", "a connection for each stream"])
def test_what_is_stored_when_a_sink_goes_down_is_there_in_order_when_it_is_back(
    tmp_path: Path, per_stream: bool
) -> None:
    port = free_port()
    with Taker() as well, Taker() as ill:
        deployment = deployed(
            listening("source", port),
            dialling("well", well.port, per_stream=per_stream),
            dialling("ill", ill.port, per_stream=per_stream),
            pipeline("p"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/well/in"),
            link("pipeline/p/out", "connector/ill/in"),
        )
        with killed_scene(tmp_path / "data", deployment) as scene, Sender(port) as sender:
            sender.send(*numbered("a", 1, 20))
            until(lambda: len(ill.lines) == 20 and len(well.lines) == 20)
            ill.down()
            until(lambda: scene.waiting() == {"source": 1})
            sender.send(*numbered("a", 21, 40))
            ill.up()
            until(lambda: len(ill.lines) >= 40 and len(well.lines) >= 40)
            assert ill.lines == well.lines == numbered("a", 1, 40)
