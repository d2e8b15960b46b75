"""The applications in examples/, run as they are but for their ports."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.spark.test_run_command import EXAMPLES, Run, is_running, ports


def copy_example(name: str, folder: Path, replaced: Mapping[str, object]) -> Path:
    """The application's file in the folder, with its function beside it. `replaced`: text of the file, such as a port,
    and what stands in its place.
    """
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for found, other in replaced.items():
        assert found in text
        text = text.replace(found, str(other))
    (folder / f"{name}.yaml").write_text(text)
    for beside in (f"{name}.py", f"{name}.avsc"):
        if (EXAMPLES / beside).exists():
            (folder / beside).write_text((EXAMPLES / beside).read_text())
    return folder / f"{name}.yaml"


class Example:
    """One that runs, in a folder of its own."""

    def __init__(
        self,
        name: str,
        folder: Path,
        pipeline: str,
        *,
        is_awaited: bool = True,
        replaced: Mapping[str, object] | None = None,
    ) -> None:
        """`is_awaited`: it is entered when the pipeline takes events, and not as soon as its worker listens."""
        self._folder = folder
        self._pipeline = pipeline
        self._is_awaited = is_awaited
        self.run = Run(folder, str(copy_example(name, folder, replaced or {})), "--data", str(folder / "data"))

    def __enter__(self) -> Self:
        self.run.__enter__()
        try:
            self.run.until(lambda: ports(self._folder / "data"))
            if self._is_awaited:
                self.run.until(lambda: is_running(self.worker, self._pipeline))
        except BaseException:
            self.run.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run.__exit__(None, None, None)

    @property
    def worker(self) -> str:
        return f"127.0.0.1:{ports(self._folder / 'data')['http']}"

    def terminate(self) -> int:
        """As a supervisor does: Spark's JVM gets the signal as well."""
        os.killpg(self.run.process.pid, signal.SIGTERM)
        return self.run.ended()

    def interrupt(self) -> int:
        self.run.process.send_signal(signal.SIGINT)
        return self.run.ended()
