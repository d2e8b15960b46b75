"""Delegation tokens: how a client of the Pravega controller presents its token on the segment port.

Such a client gets a token for a stream from the controller, and expects a JSON Web Token: three parts with dots between
them, the second with a time of expiry, after which it asks for another. Here the third part is the token that the
client has presented to the controller: a delegation token is a secret like that, and ends with it if it is revoked.
"""

import json
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from penstock.core.errors import TokenExpired

_PREFIX = "penstock."
_SLACK_SECONDS = 300
"""How long after its expiry a token is accepted: clocks differ, and requests take a while."""


def delegate(token: str, expires_at: int) -> str:
    """`expires_at`: seconds since 1970, when the client asks for a new one. Empty for an empty token."""
    if not token:
        return ""
    body = json.dumps({"exp": expires_at})
    body += " " * (-len(body) % 3)  # without padding: the alphabets of JSON Web Tokens and of base64 agree on the rest
    inner = urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return f"{_PREFIX}{b64encode(body.encode()).decode()}.{inner}"


class _Delegation(NamedTuple):
    token: str
    expires_at: int


def delegated(token: str, now: float | None = None) -> str:
    """The token that a delegation token stands for; any other token is returned as it is. Raises TokenExpired if it has
    expired at this time, in seconds since 1970.
    """
    found = _parsed(token) if token.startswith(_PREFIX) else None
    if found is None:
        return token
    if now is not None and now > found.expires_at + _SLACK_SECONDS:
        raise TokenExpired("the delegation token has expired", "Ask the controller for a new one.")
    return found.token


def _parsed(token: str) -> _Delegation | None:
    """None for a token that just looks similar."""
    _, _, rest = token.partition(".")
    body, _, inner = rest.partition(".")
    try:
        given = json.loads(b64decode(body, validate=True))
        return _Delegation(urlsafe_b64decode(inner + "=" * (-len(inner) % 4)).decode(), int(given["exp"]))
    except (ValueError, TypeError, LookupError):
        return None
