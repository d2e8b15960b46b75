"""Our own sources pass the conformance suite for source clients."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.client import Message
from penstock.client.source import Factory
from penstock.core.address import Address
from penstock.testing.source_conformance import SCENARIOS, Scenario, Stage, Verdict

LAST = 120


def numbers(stream: str) -> Factory:
    def messages(after: int | None) -> Iterator[Message]:
        return (Message(n, f"{stream} {n}".encode()) for n in range(1 if after is None else after + 1, LAST + 1))

    return messages


def test_a_source_conforms(make_source: Callable[..., Any]) -> None:
    def run(address: str) -> None:
        source = make_source(address)
        for name in ("one", "two"):
            source.stream(name, numbers(name))
        source.run()

    async def perform(scenario: Scenario, threads: ThreadPoolExecutor) -> Verdict:
        loop = asyncio.get_running_loop()
        with Stage(Address("127.0.0.1", 0)) as stage:
            return await stage.perform(scenario, lambda address: loop.run_in_executor(threads, run, address))

    async def perform_all(threads: ThreadPoolExecutor) -> list[Verdict]:
        return await asyncio.gather(*(perform(scenario, threads) for scenario in SCENARIOS))

    with ThreadPoolExecutor(len(SCENARIOS)) as threads:
        verdicts = asyncio.run(perform_all(threads))
    assert [verdict for verdict in verdicts if verdict.outcome != "passed" or verdict.findings] == []
