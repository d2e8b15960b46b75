"""The whole system as real processes: two source programs, a worker, Spark's driver, two sink programs."""

import time
from contextlib import suppress
from pathlib import Path

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PenstockError
from tests.delivery.crasher.checking import CHECKS, Watched
from tests.delivery.crasher.events import LINES, PROGRAMS
from tests.delivery.crasher.parts import Part
from tests.support.ports import free_port

SINKS = ("first", "second")
START_SECONDS_MAX = 120.0
STUCK_SECONDS = 120.0
"""Without anything new at a sink: the slowest way back, that of Spark's driver, takes a quarter of that on a machine
that is busy."""


class System:
    """Call `look` repeatedly: it raises AssertionError as soon as something is wrong, or there is no progress."""

    def __init__(self, directory: Path, pipeline: str, messages: int, rate: float) -> None:
        self.pipeline = pipeline
        self.messages = messages
        self._directory = directory
        self._ports = {name: free_port() for name in ("http", "segment", "connector", *SINKS)}
        self.sinks = {name: Watched(directory / f"{name}.txt", CHECKS[pipeline]()) for name in SINKS}
        parts = [self._worker(), self._driver(), *map(self._sink, SINKS)]
        self.sources = {name: self._source(name, rate) for name in PROGRAMS}
        self.parts = {part.name: part for part in (*parts, *self.sources.values())}
        self._moved_at = time.monotonic()

    def __enter__(self) -> "System":
        for name in (*SINKS, "worker"):
            self.parts[name].start()
        self._wait_for_worker()
        self.parts["driver"].start()
        self._wait_for_pipeline()
        for name in PROGRAMS:
            self.parts[name].start()
        self._moved_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.parts.values():
            part.kill()

    # The parts.

    def _part(self, name: str, *command: str) -> Part:
        return Part(name, command, self._directory / f"{name}.log")

    def _worker(self) -> Part:
        ports = [f"--{name}-port={self._ports[name]}" for name in ("http", "segment", "connector")]
        sizes = ["--chapter-size=1MiB", "--reserve=2MiB"]
        return self._part("worker", "penstock", "worker", "--data", str(self._directory / "data"), *ports, *sizes)

    def _driver(self) -> Part:
        command = ["penstock", "run", str(Path(__file__).with_name("pipelines.py")), "--pipeline", self.pipeline]
        command += ["--worker", self._address("http"), "--checkpoint", str(self._directory / "checkpoint")]
        command += ["--master", "local[2]"]
        for name in SINKS:
            command += ["--sink", f"connector://{self._address(name)}"]
        return self._part("driver", *command)

    def _sink(self, name: str) -> Part:
        program = "tests.delivery.crasher.sink_program"
        return self._part(name, program, str(self.sinks[name].file), self._address(name))

    def _source(self, name: str, rate: float) -> Part:
        program = "tests.delivery.crasher.source_program"
        return self._part(name, program, self._address("connector"), name, str(self.messages), str(rate))

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def _wait_for_worker(self) -> None:
        with CoordinatorClient(self._address("http"), START_SECONDS_MAX) as coordinator:
            coordinator.status()

    def _wait_for_pipeline(self) -> None:
        """Only registered pipelines delay acknowledgements: without one, a program is acknowledged once stored."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with CoordinatorClient(self._address("http"), START_SECONDS_MAX) as coordinator:
            while not any(len(known.inputs) == len(PROGRAMS) for known in coordinator.pipelines()):
                self._check_alive()
                if time.monotonic() > deadline:
                    raise AssertionError(f"the pipeline does not start\n{self.report()}")
                time.sleep(0.1)

    # Looking.

    def look(self) -> None:
        before = {name: sink.size for name, sink in self.sinks.items()}
        try:
            for sink in self.sinks.values():
                sink.read_on()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from error
        self._check_alive()
        if before != {name: sink.size for name, sink in self.sinks.items()}:
            self._moved_at = time.monotonic()
        elif time.monotonic() > self._moved_at + STUCK_SECONDS:
            raise AssertionError(f"nothing has moved for {STUCK_SECONDS:g} s\n{self.report()}")

    def _check_alive(self) -> None:
        """No process ends by itself, except programs that are done."""
        started = [part for part in self.parts.values() if part.is_started]
        ended = [part for part in started if part.exit_status not in ((None, 0) if part.name in PROGRAMS else (None,))]
        if ended:
            raise AssertionError(f"{ended[0].name} has ended by itself\n{self.report()}")

    @property
    def share(self) -> float:
        """The share of all messages to be sent that have taken effect at every sink."""
        return min(sink.committed for sink in self.sinks.values()) / (len(LINES) * self.messages)

    @property
    def is_done(self) -> bool:
        """Everything is acknowledged, and has taken effect at every sink."""
        return self.share >= 1 and all(source.exit_status == 0 for source in self.sources.values())

    def check_end(self) -> None:
        """Everything is there, and the sinks have the same bytes."""
        self.look()
        for sink in self.sinks.values():
            assert sink.lacks(self.messages) == {}
        contents = {sink.file.read_bytes()[: sink.size] for sink in self.sinks.values()}
        assert len(contents) == 1, "the sinks hold different bytes"

    def kills(self) -> dict[str, int]:
        return {name: part.kills for name, part in self.parts.items()}

    def report(self) -> str:
        """The last output of every part."""
        positions = {name: (sink.size, sink.lacks(self.messages)) for name, sink in self.sinks.items()}
        said = [part.last_words() for part in self.parts.values()]
        return "\n".join([f"committed: {positions}", *said, self._worker_says()])

    def _worker_says(self) -> str:
        with suppress(PenstockError), CoordinatorClient(self._address("http"), 1) as coordinator:
            return f"--- sinks: {coordinator.sinks()}\n--- epochs: {coordinator.epochs(self.pipeline)[:5]}"
        return "--- the worker does not answer"
