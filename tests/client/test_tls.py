"""TLS, and TLS with certificates on both sides."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client.credentials import parse_workers
from penstock.client.segments import AsyncSegmentClient, SegmentClient
from penstock.core.errors import PenstockError, RequestError, Unavailable
from tests.support.running_worker import running_worker
from tests.support.tls import client_context, server_context

EVENTS = [b"%06d" % n * 50 for n in range(20_000)]


def use_blocking(address: str, context: ssl.SSLContext | None, retry_seconds: float) -> list[bytes]:
    with SegmentClient(address, ssl=context, retry_seconds=retry_seconds, timeout_seconds=5) as client:
        with client.appender("s", create=True) as appender:
            appender.append_many(EVENTS)
        return [event.data for event in client.events("s")]


def use_async(address: str, context: ssl.SSLContext | None, retry_seconds: float) -> list[bytes]:
    async def use() -> list[bytes]:
        async with AsyncSegmentClient(address, ssl=context, retry_seconds=retry_seconds, timeout_seconds=5) as client:
            async with await client.appender("s", create=True) as appender:
                await appender.append_many(EVENTS)
            return [event.data async for event in client.events("s")]

    return asyncio.run(use())


Use = Callable[[str, ssl.SSLContext | None, float], list[bytes]]
both = pytest.mark.parametrize("use", [use_blocking, use_async])


@both
@pytest.mark.parametrize("mutual", [False, True])
def test_events_go_in_and_out_over_tls(tmp_path: Path, use: Use, mutual: bool) -> None:
    with running_worker(tmp_path / "data", ssl=server_context(mutual=mutual)) as worker:
        assert use(worker.address, client_context(certificate=mutual), 10) == EVENTS


@both
def test_an_authority_that_is_not_trusted_is_refused_at_once(tmp_path: Path, use: Use) -> None:
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        with pytest.raises(Unavailable) as raised:
            use(worker.address, ssl.create_default_context(), 60)
        assert "certificate" in str(raised.value)
        assert "certificates" in raised.value.hint


@both
def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(tmp_path: Path, use: Use) -> None:
    with running_worker(tmp_path / "data", ssl=server_context(mutual=True)) as worker, pytest.raises(Unavailable):
        use(worker.address, client_context(), 1)


@both
def test_tls_on_one_side_only_is_an_error_on_either(tmp_path: Path, use: Use) -> None:
    with running_worker(tmp_path / "tls", ssl=server_context()) as worker, pytest.raises(PenstockError):
        use(worker.address, None, 0)
    with running_worker(tmp_path / "plain") as worker, pytest.raises(PenstockError):
        use(worker.address, client_context(), 0)


def test_workers_with_tls_and_without_are_not_mixed() -> None:
    """The token of one would go to another in plain."""
    assert [is_tls for _, is_tls in parse_workers("https://a:7102,https://b:7102")] == [True, True]
    with pytest.raises(RequestError, match="some of these workers use TLS, others do not"):
        parse_workers("https://a:7102,b:7102")
