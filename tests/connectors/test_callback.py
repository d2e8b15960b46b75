"""Non-voting sinks receive every block, in order, at least once: functions, and types by their URLs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.connectors.api import Outgoing, SegmentPort
from penstock.connectors.callback import Callback, CallbackOptions
from penstock.connectors.row_formats import encode
from penstock.connectors.sink_api import Block, NonVotingSink, SinkLost, rows_of
from penstock.connectors.tables import no_schema
from penstock.connectors.threaded import BlockByBlock
from penstock.connectors.urls import parse_sink
from penstock.delivery.sinks import UrlNonVotingSink
from tests.delivery.fake_epoch import FakeEpoch, Row, block_of

ROWS = [b"a", b"bb", b"", b"ccc", b"d"]


def calling(file: Path) -> NonVotingSink:
    return Callback(CallbackOptions(path=file, function="keep")).make_sink("p/s", no_schema)


def following(url: str) -> UrlNonVotingSink:
    return UrlNonVotingSink(parse_sink(url).connector, "p/s", lambda: SegmentPort(""))


class Recording:
    """Fails once for each name in `failing`."""

    def __init__(self, failing: set[str]) -> None:
        self.failing = failing
        self.taken: list[str] = []
        self.is_closed = False

    def take(self, name: str, block: Block) -> None:
        self.is_closed = False
        if name in self.failing:
            self.failing.discard(name)
            raise SinkLost("not now")
        self.taken.append(name)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_rows_have_ids_that_count_payload_bytes() -> None:
    block = block_of([Row(b"abc", b"k", 5), Row(b""), Row(b"z")], first_id=10)
    assert rows_of(block) == [(10, 5, b"k", b"abc"), (13, None, b"", b""), (13, None, b"", b"z")]


def test_rows_as_json_keep_any_bytes() -> None:
    given = Outgoing(None, ["ü\n".encode(), b"\xff"], [1, 4], [b"k", b""], [7, None])
    assert [json.loads(line) for line in encode(given, "json").splitlines()] == [
        {"id": 1, "event_time_us": 7, "key": "k", "value": "ü\n"},
        {"id": 4, "event_time_us": None, "key": "", "value_base64": "/w=="},
    ]


def test_rows_as_lines_are_the_values() -> None:
    assert encode(Outgoing(None, [b"a", b"", b"b"], [1, 2, 2]), "lines") == b"a\n\nb\n"


async def test_accepted_blocks_are_not_delivered_again_when_a_later_one_fails() -> None:
    taker = Recording({"p:1:1/1"})
    sink = BlockByBlock(taker, "s")
    with pytest.raises(SinkLost, match="not now"):
        await sink.deliver(FakeEpoch(ROWS, block_rows=2))
    await sink.deliver(FakeEpoch(ROWS, block_rows=2))
    assert taker.taken == ["p:1:1/0", "p:1:1/1", "p:1:1/2"]
    await sink.deliver(FakeEpoch(ROWS, number=2, start=7))
    assert taker.taken[3:] == ["p:1:2/0", "p:1:2/1"]
    await sink.close()


async def test_an_epoch_with_other_blocks_is_delivered_again_from_its_start() -> None:
    taker = Recording({"p:1:1/1"})
    sink = BlockByBlock(taker, "s")
    with pytest.raises(SinkLost):
        await sink.deliver(FakeEpoch(ROWS, block_rows=2))
    await sink.deliver(FakeEpoch(ROWS, block_rows=3))
    assert taker.taken == ["p:1:1/0", "p:1:1/0", "p:1:1/1"]
    await sink.close()


async def test_a_closed_sink_can_be_used_again() -> None:
    taker = Recording(set())
    sink = BlockByBlock(taker, "s")
    await sink.close()
    await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()
    await sink.deliver(FakeEpoch([b"b"], number=2, start=1))
    await sink.close()
    assert taker.taken == ["p:1:1/0", "p:1:2/0"]


async def test_a_callback_is_called_with_the_rows_of_each_block(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(
        "def keep(name, rows):\n"
        f"    with open({str(out)!r}, 'a') as out:\n"
        "        print(name, [tuple(row) for row in rows], file=out)\n"
    )
    sink = calling(file)
    await sink.deliver(FakeEpoch([Row(b"a", b"k", 3), b"b"], block_rows=1))
    await sink.close()
    assert out.read_text() == "p:1:1/0 [(0, 3, b'k', b'a')]\np:1:1/1 [(1, None, b'', b'b')]\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "not found"),
        ("x = 1\n", "has no function keep"),
        ("def keep(name, rows): raise KeyError('mine')\n", "keep failed: KeyError: 'mine'"),
        ("raise ValueError('at once')\n", "failed: ValueError: at once"),
        ("async def keep(name, rows): pass\n", "is a coroutine function"),
    ],
)
async def test_a_callback_that_cannot_be_called_is_reported_and_reloaded(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    sink = calling(file)
    with pytest.raises(SinkLost, match=reason):
        await sink.deliver(FakeEpoch([b"a"]))
    file.write_text("def keep(name, rows):\n    pass  # mended\n")
    await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()


async def test_the_traceback_of_a_failing_callback_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def keep(name, rows):\n    raise ValueError('not today')\n")
    sink = calling(file)
    for _ in range(3):
        with pytest.raises(SinkLost, match="not today"):
            await sink.deliver(FakeEpoch([b"a"]))
    assert len(caplog.records) == 1
    await sink.close()


async def test_stdout_gets_the_values_as_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = following("stdout:")
    await sink.deliver(FakeEpoch([b"a", b"\xff"]))
    await sink.close()
    assert capfdbinary.readouterr().out == b"a\n\xff\n"


@pytest.mark.process
def test_a_closed_stdout_is_a_lost_sink(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from penstock.connectors.sink_api import SinkLost\n"
        "from tests.connectors.test_callback import following\n"
        "from tests.delivery.fake_epoch import FakeEpoch\n"
        "async def main(): await following('stdout:').deliver(FakeEpoch([b'a']))\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except SinkLost as error:\n"
        "    print(error, file=sys.stderr)\n"
        "    sys.stderr.flush()\n"
        "import os; os._exit(0)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stdin.write(b"\n")
    child.stdin.close()
    said = child.stderr.read()
    child.stderr.close()
    child.wait(200)
    assert b"cannot write to the worker's standard output" in said


@pytest.mark.process
def test_a_callback_that_never_returns_does_not_prevent_the_process_from_exiting(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import time\ndef hang(name, rows):\n    print('hangs', flush=True)\n    time.sleep(1000)\n")
    code = (
        "import asyncio, contextlib\n"
        "from penstock.connectors.tables import no_schema\n"
        "from penstock.connectors.urls import parse_sink\n"
        "from tests.delivery.fake_epoch import FakeEpoch\n"
        "async def main():\n"
        f"    sink = parse_sink('callback:{file}:hang').connector.make_sink('p/s', no_schema)\n"
        "    with contextlib.suppress(TimeoutError):\n"
        "        await asyncio.wait_for(sink.deliver(FakeEpoch([b'a'])), 0.5)\n"
        "    await sink.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=200, capture_output=True, check=True
    )
    assert done.stdout == b"hangs\n"
