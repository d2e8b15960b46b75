"""Addresses of workers, as options and Host headers have them."""

import pytest

from penstock.core.address import PORT, Address
from penstock.core.errors import RequestError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a", "a", PORT), ("a:1", "a", 1), ("a:65535", "a", 65535), ("[::1]", "::1", PORT), ("[::1]:80", "::1", 80)],
)
def test_a_host_may_have_a_port(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", ":1", "a:65536", "a:-1", "a:x", "a:¹", "a:" + "9" * 5000, "[::1", "[::1]80", "[::1]x", "[]:1", "["]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        Address.parse(text)
