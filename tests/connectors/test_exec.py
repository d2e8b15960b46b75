"""`exec`: real programs, which end, fail, are stopped and are killed."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.api import Lost, Outgoing
from penstock.connectors.exec import Exec, ExecOptions
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.protocol.api.deployment import InterceptorSpec, ReconnectSpec
from tests.connectors.real_host import LINES, hosting
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually

pytestmark = pytest.mark.process

AT_ONCE = ReconnectSpec(first_seconds=0.01, max_seconds=0.05)


def shell(script: str, **options: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **options}


def source(tmp_path: Path, script: str, **options: Any) -> Any:
    return hosting(tmp_path / "data", "exec", shell(script, **options), interceptors_in=LINES, reconnect=AT_ONCE)


async def test_the_output_of_a_program_is_a_stream_and_its_end_ends_the_source(tmp_path: Path) -> None:
    async with source(tmp_path, "echo one; echo two; printf three") as hosted:
        await hosted.ended()
        assert hosted.values() == [b"one", b"two", b"three"]
        assert hosted.host.log.has_finished


async def test_a_program_that_fails_is_started_again_and_half_a_line_is_a_dead_letter(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    script = f"echo a; test -e {flag} && exit 0; touch {flag}; echo 'no more' >&2; printf hal; exit 3"
    async with source(tmp_path, script) as hosted:
        await hosted.ended()
        assert hosted.values() == [b"a", b"a"]
        (dead_letter,) = hosted.dead_letters()
        assert dead_letter.value == b"hal"
        assert "sh has ended with code 3" in dead_letter.metadata["reason"]
        assert hosted.host.counts == {"exits": 1, "failed_exits": 1}


async def test_other_codes_can_be_a_success_and_a_success_can_be_started_again(tmp_path: Path) -> None:
    async with source(tmp_path, "echo a; exit 3", success=[0, 3], restart="always") as hosted:
        await eventually(lambda: len(hosted.values()) >= 3)
        assert hosted.dead_letters() == []


async def test_the_reason_of_a_failure_has_its_signal_and_its_last_words() -> None:
    tested = Exec(ExecOptions.model_validate(shell("echo one >&2; echo two >&2; kill -SEGV $$")))
    with pytest.raises(Lost, match=r"sh was ended by SIGSEGV: one; two"):
        await tested.run(RecordingHost())
    with pytest.raises(Lost, match="no-such-program cannot be started"):
        await Exec(ExecOptions(command=["no-such-program"])).run(RecordingHost())


async def test_standard_error_is_logged_within_bounds_and_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_PASSWORD", "correct-horse")
    script = "echo $PASSWORD >&2; i=0; while [ $i -lt 300 ]; do echo line $i >&2; i=$((i+1)); done"
    tested = make_connector("exec", shell(script, environment={"PASSWORD": "${THE_PASSWORD}"}))
    host = RecordingHost(has_in=False)
    with caplog.at_level(logging.WARNING, "penstock.connectors.exec"):
        await tested.run(host)
    assert len(caplog.records) == 100
    assert host.counts["stderr_lines_left_out"] == 201
    assert "correct-horse" not in caplog.text
    assert "${THE_PASSWORD}" in caplog.text


async def test_a_program_gets_its_own_environment_and_directory_and_not_the_worker_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_WORKER", "hidden")
    async with source(tmp_path, "env; pwd", environment={"COLOUR": "blue"}, directory=str(tmp_path)) as hosted:
        await hosted.ended()
        assert b"COLOUR=blue" in hosted.values()
        assert hosted.values()[-1] == str(tmp_path).encode()
        assert not any(value.startswith(b"A_SECRET") for value in hosted.values())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_program_that_does_not_listen_is_killed_with_its_children(tmp_path: Path) -> None:
    script = "trap '' TERM; sh -c \"trap '' TERM; echo $$; while :; do sleep 0.05; done\" & echo $!; wait; sleep 60"
    async with source(tmp_path, script, stop_after="50ms") as hosted:
        await eventually(lambda: len(hosted.values()) == 2)
        pids = {*map(int, hosted.values())}
        pids |= {int(name.rpartition(" ")[2]) for name in (stream.name for stream in hosted.host.streams.values())}
        assert all(map(is_alive, pids))
    await eventually(lambda: not any(map(is_alive, pids)))


async def test_a_program_may_end_by_itself_when_its_input_is_closed(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    async with source(tmp_path, f"echo up; cat; echo done > {proof}", stop_after="20s") as hosted:
        await eventually(lambda: hosted.values() == [b"up"])
    assert proof.read_text() == "done\n"


async def test_values_that_a_killed_program_had_not_read_are_written_to_the_next_one(tmp_path: Path) -> None:
    """A stopped program reads nothing: what is in its pipe when it is killed is not delivered."""
    log = tmp_path / "log"
    script = f"while read line; do echo $line >> {log}; done"
    config = shell(script)
    async with hosting(tmp_path / "data", "exec", config, has_in=True, has_out=False, reconnect=AT_ONCE) as hosted:
        await hosted.connected()
        await hosted.deliver([b"one"], [1])
        await eventually(lambda: log.exists() and log.read_text() == "one\n")
        program = hosted.connector._program  # type: ignore[attr-defined]
        os.kill(program.pid, signal.SIGSTOP)
        delivering = asyncio.create_task(hosted.deliver([b"two", b"three"], [2, 3]))
        _, waiting = await asyncio.wait([delivering], timeout=0.1)
        assert waiting
        os.kill(program.pid, signal.SIGKILL)
        with pytest.raises(Lost):
            await delivering
        await eventually(lambda: hosted.connector._program not in (None, program))  # type: ignore[attr-defined]
        await hosted.deliver([b"two", b"three"], [2, 3])
        await eventually(lambda: log.read_text() == "one\ntwo\nthree\n")


async def test_a_program_that_closes_its_input_loses_the_sink() -> None:
    tested, host = Exec(ExecOptions.model_validate(shell("exec <&-; echo closed; sleep 60"))), RecordingHost()
    async with running(tested, host):
        await eventually(lambda: host.streams and host.streams[0].events)
        with pytest.raises(Lost, match="has closed its standard input"):
            await asyncio.wait_for(tested.deliver(Outgoing(None, [b"a"], [0]), host), SECONDS_MAX)


async def test_an_output_that_is_not_read_stops_the_program_and_not_the_loop(tmp_path: Path) -> None:
    script = (
        f"import sys\nfor n in range(200_000): print(n, 'x' * 90)\nprint('end'); open({str(tmp_path / 'end')!r}, 'w')"
    )
    config = {"command": [sys.executable, "-c", script]}
    async with hosting(
        tmp_path / "data", "exec", config, interceptors_in=(InterceptorSpec(type="split"),), quota_bytes=1 << 20
    ) as hosted:
        hosted.hold()
        await eventually(lambda: not hosted.host.room.there)
        assert not (tmp_path / "end").exists()


def test_a_worker_runs_no_programs_unless_it_was_started_for_that(tmp_path: Path) -> None:
    careful = Permissions.of(tmp_path, (tmp_path,), callbacks=True, exposed=False)
    with pytest.raises(NotPermitted, match="programs are not allowed") as refused:
        make_connector("exec", {"command": ["true"]}, careful)
    assert "--allow-exec" in refused.value.hint
    generous = Permissions.of(tmp_path, (tmp_path,), callbacks=False, exposed=False, programs=True)
    make_connector("exec", {"command": ["true"]}, generous)
    with pytest.raises(NotPermitted, match="outside the directories"):
        make_connector("exec", {"command": ["true"], "directory": "/etc"}, generous)
