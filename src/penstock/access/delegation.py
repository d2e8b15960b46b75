"""Delegation tokens: how a client of the Pravega controller presents its token on the segment port.

Such a client gets a token for a stream from the controller, and expects a JSON Web Token: three parts with dots between
them, the second with a time of expiry, after which it asks for another. Here the third part is the token that the
client has presented to the controller. So a delegation token is worth exactly as much as that, and ends with it.
"""

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error

_PREFIX = "penstock."


def delegate(token: str, expires_at: int) -> str:
    """`expires_at`: seconds since 1970, when the client asks for a new one. Empty for an empty token."""
    if not token:
        return ""
    body = json.dumps({"exp": expires_at})
    body += " " * (-len(body) % 3)  # without padding: the alphabets of JSON Web Tokens and of base64 agree on the rest
    inner = urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return f"{_PREFIX}{b64encode(body.encode()).decode()}.{inner}"


def delegated(token: str) -> str:
    """The token that a delegation token stands for; any other token is returned as it is."""
    if not token.startswith(_PREFIX):
        return token
    _, _, inner = token.rpartition(".")
    try:
        return urlsafe_b64decode(inner + "=" * (-len(inner) % 4)).decode()
    except (Error, ValueError):
        return token
