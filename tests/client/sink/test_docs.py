"""docs/sinks.md matches the code."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.client import DataFile, Sink
from tests.client.sink.conftest import Output
from tests.client.sink.running_sink import Serve
from tests.client.sink.scripted_worker import ScriptedWorker

PAGE = (Path(__file__).parents[3] / "docs" / "sinks.md").read_text()


def test_the_session_of_the_page_matches_byte_for_byte(serve: Serve, output: Output) -> None:
    lines = re.findall(r"^([→←]) (\w+) +([0-9a-f]+)$", PAGE, re.MULTILINE)
    assert len(lines) > 15
    with serve(DataFile(output.path), cookie=b"c") as address, ScriptedWorker(address) as worker:
        for direction, _, digits in lines:
            data = bytes.fromhex(digits)
            if direction == "→":
                worker.send_bytes(data)
            else:
                assert worker.receive_bytes(len(data)).hex() == digits
    assert output.committed == b"helloworld!again"


def test_the_programs_of_the_page_are_working_sinks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(Sink, "run", lambda self: ran.append(self))
    monkeypatch.chdir(tmp_path)
    programs = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Sink(" in code]
    for code in programs:
        exec(compile(code, "sinks.md", "exec"), {})
    assert len(ran) == len(programs) == 2
