"""How a source's connection, or the source itself, ends.

After a plain close, a RESTART, or if nothing answers, the source tries again. Not after an ERROR: "a short reason meant
for the programmer or operator" implies that the same HELLO, or the same message, would get the same answer.
"""

from penstock.client.segments import failures
from penstock.client.segments.failures import Interrupted
from penstock.core.address import Address
from penstock.core.errors import RequestError, Unavailable

PORT = 7100
"""The default connector port of a worker."""


class Lost(Interrupted):
    """The connection is lost. The source reconnects until its `retry_seconds` are over, then raises this."""


class Restarted(Lost):
    """The worker asked us to reconnect, to `address` unless it is empty."""

    def __init__(self, where: Address, address: str) -> None:
        super().__init__(f"the worker at {where} asked us to {f'connect to {address}' if address else 'connect again'}")
        self.address = address


class Refused(RequestError):
    """The worker answered with an ERROR; this is its text. Final."""


class SourceFailed(RequestError):
    """The connector called `fail` with this reason."""

    hint = "The connector reported this itself: fix it, then run it again."


def parse_address(text: str) -> Address:
    """`host:port`; the port may be left out."""
    text = text.removesuffix(":")
    has_port = ":" in text.rpartition("]")[2]
    return Address.parse(text if has_port else f"{text}:{PORT}")


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The seeds, in order: one address or several, with commas between them."""
    return tuple(dict.fromkeys(parse_address(one.strip()) for one in text.split(",")))


def unreachable(address: Address, error: Exception) -> Unavailable:
    """The error for one of the operating system or of TLS: Lost, unless a retry cannot help."""
    return failures.unreachable(address, error, port="connector", interrupted=Lost)


def closed(address: Address) -> Lost:
    return Lost(f"the worker at {address} closed the connection")


def circle(address: Address) -> Lost:
    return Lost(f"workers redirect the client in a circle, last to {address}")


def no_answer(address: Address, seconds: float) -> Lost:
    return Lost(f"the worker at {address} has not answered for {seconds:g} s")
