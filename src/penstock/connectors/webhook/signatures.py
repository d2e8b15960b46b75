"""Signatures of webhooks: HMAC-SHA256 in the styles of GitHub, Stripe and Standard Webhooks. Pure.

github     X-Hub-Signature-256: sha256=HEX of the body                          X-GitHub-Delivery: ID
stripe     Stripe-Signature: t=SECONDS,v1=HEX of "SECONDS.BODY"
standard   webhook-signature: v1,BASE64 of "ID.SECONDS.BODY"                    webhook-id: ID
           webhook-timestamp: SECONDS
"""

import base64
import binascii
import hmac
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.secrets import has_references
from penstock.connectors.values import SomeSeconds
from penstock.core.errors import PenstockError

_SIGNATURES_MAX = 16
"""In one request: a sender that rotates its secret signs with two or three of them."""

_STANDARD_PREFIX = "whsec_"

DELIVERY_HEADERS = {"github": "x-github-delivery", "stripe": "", "standard": "webhook-id"}
"""The header with the id of a delivery, which is the same when it is repeated; Stripe has none."""


class Unverified(PenstockError):
    """The signature is missing, wrong or too old."""


class Signature(Options):
    """Take secrets from the environment or from files: `${NAME}`, `${file:PATH}`."""

    style: Literal["github", "stripe", "standard"] = "standard"
    """The headers and what they sign. `github`: `X-Hub-Signature-256`. `stripe`: `Stripe-Signature`, with a timestamp.
    `standard`: `webhook-id`, `webhook-timestamp` and `webhook-signature`, as in the Standard Webhooks specification."""
    secrets: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, repr=False)
    """The shared secrets. Received signatures may be made with any of them, so that a secret can be replaced without a
    gap. What is sent is signed with the first; with `standard`, with each. With `standard` a secret is base64, with or
    without `whsec_` before it."""
    tolerance: SomeSeconds = 300.0
    """How far the timestamp of a received request may be from the worker's clock: an older one may be a
    replay. `github` has no timestamps."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.style != "standard":
            return self
        for secret in self.secrets:
            if has_references(secret):  # its value is checked where it is known
                continue
            try:
                _key(self.style, secret)
            except (binascii.Error, ValueError):
                raise ValueError("a secret of the style standard is base64, with or without whsec_ before it") from None
        return self


def sign(signature: Signature, delivery: str, body: bytes, now: float) -> dict[str, str]:
    """The headers of a request. `delivery` is the same when it is sent again."""
    seconds = str(int(now))
    match signature.style:
        case "github":
            hexes = _hex(signature, signature.secrets[0], body)
            return {"X-Hub-Signature-256": f"sha256={hexes}", "X-GitHub-Delivery": delivery}
        case "stripe":
            return {
                "Stripe-Signature": f"t={seconds},v1={_hex(signature, signature.secrets[0], _dated(seconds, body))}"
            }
        case "standard":
            content = delivery.encode() + b"." + _dated(seconds, body)
            made = " ".join(f"v1,{_base64(signature, secret, content)}" for secret in signature.secrets)
            return {"webhook-id": delivery, "webhook-timestamp": seconds, "webhook-signature": made}


def verify(signature: Signature, headers: Mapping[str, str], body: bytes, now: float) -> None:
    """Headers have names in lower case. Takes the same time whatever is wrong with a signature. Raises Unverified."""
    match signature.style:
        case "github":
            given, content = _github(headers), body
            expected = [f"sha256={_hex(signature, secret, content)}" for secret in signature.secrets]
        case "stripe":
            fields = [*_stripe(headers)]
            seconds = next((value for name, value in fields if name == "t"), "")
            _check_time(seconds, signature.tolerance, now)
            given, content = [value for name, value in fields if name == "v1"], _dated(seconds, body)
            expected = [_hex(signature, secret, content) for secret in signature.secrets]
        case "standard":
            seconds = headers.get("webhook-timestamp", "")
            _check_time(seconds, signature.tolerance, now)
            content = headers.get("webhook-id", "").encode() + b"." + _dated(seconds, body)
            given = headers.get("webhook-signature", "").split()
            expected = [f"v1,{_base64(signature, secret, content)}" for secret in signature.secrets]
    if not _match(given[:_SIGNATURES_MAX], expected):
        raise Unverified("the signature is missing or wrong", "Compare the secret with that of the sender.")


def _match(given: Iterable[str], expected: Iterable[str]) -> bool:
    """Compares all with all, whichever match."""
    wanted = [one.encode() for one in expected]
    found = [hmac.compare_digest(one.encode(), other) for one in given for other in wanted]
    return any(found)


def _github(headers: Mapping[str, str]) -> list[str]:
    found = headers.get("x-hub-signature-256", "").strip()
    return [found] if found else []


def _stripe(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for part in headers.get("stripe-signature", "").split(","):
        name, _, value = part.strip().partition("=")
        yield name, value


def _check_time(seconds: str, tolerance: float, now: float) -> None:
    """Raises Unverified."""
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 12):
        raise Unverified("the timestamp is missing or not a number")
    if abs(now - int(seconds)) > tolerance:
        raise Unverified(
            "the timestamp is too old, or in the future",
            "Check both clocks. A request delayed for longer than tolerance must be sent with a new timestamp.",
        )


def _dated(seconds: str, body: bytes) -> bytes:
    return seconds.encode() + b"." + body


def _hex(signature: Signature, secret: str, content: bytes) -> str:
    return hmac.new(_key(signature.style, secret), content, sha256).hexdigest()


def _base64(signature: Signature, secret: str, content: bytes) -> str:
    return base64.b64encode(hmac.digest(_key(signature.style, secret), content, "sha256")).decode()


def _key(style: str, secret: str) -> bytes:
    """Raises binascii.Error, ValueError."""
    if style != "standard":
        return secret.encode()
    return base64.b64decode(secret.removeprefix(_STANDARD_PREFIX), validate=True)
