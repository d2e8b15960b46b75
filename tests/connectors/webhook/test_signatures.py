"""Signatures of webhooks, in each style: what is signed is verified, and nothing else."""

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.connectors.webhook.signatures import Signature, Unverified, sign, verify

NOW = 1_800_000_000.0
SECRET = base64.b64encode(b"a secret of 24 bytes ...").decode()
STYLES = ("github", "stripe", "standard")


def signature(style: str, *secrets: str, **more: object) -> Signature:
    return Signature.model_validate({"style": style, "secrets": secrets or (SECRET,), **more})


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@given(style=st.sampled_from(STYLES), body=st.binary(max_size=100), delivery=st.uuids().map(str))
def test_what_is_signed_is_verified_and_a_changed_body_is_not(style: str, body: bytes, delivery: str) -> None:
    mine = signature(style)
    headers = lower(sign(mine, delivery, body, NOW))
    verify(mine, headers, body, NOW)
    with pytest.raises(Unverified):
        verify(mine, headers, body + b"x", NOW)
    with pytest.raises(Unverified):
        verify(signature(style, base64.b64encode(b"another").decode()), headers, body, NOW)


def test_the_style_of_github_is_a_plain_hmac_of_the_body() -> None:
    headers = sign(signature("github", "hush"), "id", b"{}", NOW)
    assert headers["X-Hub-Signature-256"] == "sha256=" + hmac.new(b"hush", b"{}", "sha256").hexdigest()


def test_the_example_in_the_documentation_of_github_is_verified() -> None:
    headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    verify(signature("github", "It's a Secret to Everybody"), headers, b"Hello, World!", NOW)


def test_the_style_of_stripe_signs_the_timestamp_and_the_body() -> None:
    made = sign(signature("stripe", "hush"), "id", b"{}", NOW)["Stripe-Signature"]
    assert made == "t=1800000000,v1=" + hmac.new(b"hush", b"1800000000.{}", "sha256").hexdigest()


def test_the_standard_style_signs_id_timestamp_and_body_with_a_key_in_base64() -> None:
    key = base64.b64decode(SECRET)
    expected = base64.b64encode(hmac.digest(key, b"msg_1.1800000000.{}", "sha256")).decode()
    for secret in (SECRET, f"whsec_{SECRET}"):
        headers = sign(signature("standard", secret), "msg_1", b"{}", NOW)
        assert headers == {
            "webhook-id": "msg_1",
            "webhook-timestamp": "1800000000",
            "webhook-signature": f"v1,{expected}",
        }


@pytest.mark.parametrize("style", ["stripe", "standard"])
@pytest.mark.parametrize("seconds", [-301, 301])
def test_a_timestamp_outside_the_tolerance_is_refused_on_both_sides(style: str, seconds: int) -> None:
    mine = signature(style)
    headers = lower(sign(mine, "id", b"{}", NOW))
    verify(mine, headers, b"{}", NOW + seconds - (1 if seconds > 0 else -1))
    with pytest.raises(Unverified, match="timestamp"):
        verify(mine, headers, b"{}", NOW + seconds)


@pytest.mark.parametrize("style", STYLES)
def test_while_a_secret_is_replaced_both_are_accepted(style: str) -> None:
    new = base64.b64encode(b"the new one").decode()
    both = signature(style, new, SECRET)
    verify(both, lower(sign(signature(style), "id", b"{}", NOW)), b"{}", NOW)
    verify(both, lower(sign(signature(style, new), "id", b"{}", NOW)), b"{}", NOW)
    verify(signature(style, new), lower(sign(both, "id", b"{}", NOW)), b"{}", NOW)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-hub-signature-256": "", "stripe-signature": "", "webhook-signature": "", "webhook-timestamp": ""},
        {"x-hub-signature-256": "sha256=", "stripe-signature": "t=1800000000", "webhook-timestamp": "1800000000"},
        {"stripe-signature": "t=x,v1=00", "webhook-timestamp": "-1", "webhook-signature": "v1,AA=="},
        {"stripe-signature": "v1=00", "webhook-timestamp": "٣", "x-hub-signature-256": "sha256=\u00e9"},
        {"stripe-signature": "t=" + "9" * 500, "webhook-timestamp": "9" * 500},
    ],
)
def test_headers_that_are_missing_or_malformed_are_refused(style: str, headers: dict[str, str]) -> None:
    with pytest.raises(Unverified):
        verify(signature(style), headers, b"{}", NOW)


def test_a_secret_of_the_standard_style_that_is_not_base64_is_refused_without_showing_it() -> None:
    with pytest.raises(ValidationError, match="base64") as raised:
        signature("standard", "not base64!")
    assert "not base64!" not in str(raised.value)
