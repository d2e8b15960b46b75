"""stdio, metronome, null."""

import asyncio
import json
import os
import time

import pytest

from penstock.connectors.api import Lost, Outgoing
from penstock.connectors.metronome import Metronome, MetronomeOptions
from penstock.connectors.null import Null, NullOptions
from penstock.connectors.registry import make_chains
from penstock.connectors.stdio import Stdio, StdioOptions
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually


def stdio(stdin: int = 0, stdout: int = 1) -> Stdio:
    made = Stdio(StdioOptions())
    made.stdin, made.stdout = stdin, stdout
    return made


async def test_standard_input_is_one_stream_and_its_end_ends_the_source() -> None:
    reading, writing = os.pipe()
    host = RecordingHost()
    host.chains = make_chains([InterceptorSpec(type="split")], [])
    async with running(stdio(stdin=reading), host) as run:
        os.write(writing, b"one\ntwo\nthr")
        await eventually(lambda: host.streams and len(host.streams[0].events) == 2)
        os.write(writing, b"ee")
        os.close(writing)
        await asyncio.wait_for(run, SECONDS_MAX)
    os.close(reading)
    assert host.streams[0].events == [b"one", b"two", b"three"]
    assert host.has_finished


async def test_a_drain_closes_a_silent_input() -> None:
    reading, writing = os.pipe()
    host = RecordingHost()
    async with running(stdio(stdin=reading), host) as run:
        await eventually(lambda: host.streams)
        host.drain()
        await asyncio.wait_for(run, SECONDS_MAX)
    assert host.streams[0].cut_off_because is not None
    assert not host.has_finished
    os.close(reading)
    os.close(writing)


async def test_standard_output_gets_values_unchanged() -> None:
    reading, writing = os.pipe()
    tested = stdio(stdout=writing)
    await tested.deliver(Outgoing(None, [b"a\n", b"b\n"], [0, 0]), RecordingHost())
    assert os.read(reading, 100) == b"a\nb\n"
    os.close(reading)
    with pytest.raises(Lost, match="standard output"):
        await tested.deliver(Outgoing(None, [b"c"], [0]), RecordingHost())
    os.close(writing)


async def test_standard_input_is_not_read_without_a_link() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"for somebody else")
    host = RecordingHost(has_out=False)
    async with running(stdio(stdin=reading), host):
        await asyncio.sleep(0.05)
    assert host.streams == []
    assert os.read(reading, 100) == b"for somebody else"
    os.close(reading)
    os.close(writing)


async def test_ticks_have_the_number_of_their_interval_as_id() -> None:
    host = RecordingHost()
    before = time.time()
    async with running(Metronome(MetronomeOptions.model_validate({"interval": "20ms"})), host) as run:
        await eventually(lambda: host.streams and len(host.streams[0].events) >= 4)
        host.drain()
        await asyncio.wait_for(run, SECONDS_MAX)
    stream = host.streams[0]
    ticks = [json.loads(event) for event in stream.events]
    assert [tick["tick"] for tick in ticks] == stream.ids
    assert stream.ids == sorted(set(stream.ids))  # a busy machine may skip some
    assert stream.ids[0] >= int(before / 0.02)
    assert all(tick["at_us"] == tick["tick"] * 20_000 for tick in ticks)


async def test_a_restart_in_the_same_interval_repeats_no_tick() -> None:
    class Resumed(RecordingHost):
        async def open_stream(self, name: str, **more: object) -> object:  # type: ignore[override]
            stream = await super().open_stream(name)
            stream.last_id = int(time.time() / 3600)
            return stream

    host = Resumed()
    async with running(Metronome(MetronomeOptions.model_validate({"interval": "1h"})), host):
        await asyncio.sleep(0.05)
    assert host.streams[0].ids == []


async def test_null_accepts_everything() -> None:
    host = RecordingHost()
    tested = Null(NullOptions())
    async with running(tested, host):
        await tested.deliver(Outgoing(None, [b"a", b"b"], [0, 0]), host)
    assert host.counts["discarded"] == 2
