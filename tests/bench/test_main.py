"""`script/bench`: what it accepts and what it prints."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import append
from bench.__main__ import BENCHMARKS, main
from bench.contender import Effort, LoadReport

SHORT = Effort(rounds=1, warmup_s=0.1, measure_s=0.5, probe_s=0.1, read_s=0.1, total_s_max=60)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module_with_two_efforts(name: str) -> None:
    text = (Path(append.__file__).parent / f"{name}.py").read_text()
    assert "\nQUICK = Effort(" in text
    assert "\nFULL = Effort(" in text


@pytest.mark.process
def test_json_is_one_object_with_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = append.run

    def short(effort: Effort, directory: Path, console: Console) -> LoadReport:
        assert effort == append.QUICK
        options = append.Options(only=("bare", "penstock"), connections=2)
        return honest(SHORT, directory, Console(file=io.StringIO()), options)

    monkeypatch.setattr(append, "run", short)
    main(["append", "--quick", "--json", "--directory", str(tmp_path)])
    (line,) = capsys.readouterr().out.splitlines()
    assert set(json.loads(line)["ratios"]) == {"bare", "read"}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["apend"])
    assert "there is no benchmark 'apend': choose from append, ingest" in capsys.readouterr().err
