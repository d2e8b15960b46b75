"""Whose fault it was: `penstock.core.errors.ProtocolError` is the peer's, `LocalProtocolError` is ours."""

from penstock.core.errors import ProtocolError, RequestError
from penstock.protocol.connector.frames import Error

ERROR_TEXT_SIZE_MAX = 1024
"""Bytes of text in an ERROR that we send: it may quote what a peer sent, and goes into its log."""


class LocalProtocolError(RequestError):
    """We were about to send what the protocol does not allow; nothing was sent, and the state is as it was."""

    hint = "This is a bug in the program that sends, not in its peer."


def error_frame(error: ProtocolError) -> Error:
    """The ERROR that tells the peer what it did wrong; a long text is cut."""
    text = str(error).encode("utf-8", "backslashreplace")
    return Error(text[:ERROR_TEXT_SIZE_MAX].decode("utf-8", "ignore"))
