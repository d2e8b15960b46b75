"""Delegation tokens, which the segment port takes for the token that was presented to the controller."""

import base64
import json

import pytest

from penstock.access.delegation import delegate, delegated
from penstock.core.errors import TokenExpired


@pytest.mark.parametrize("token", ["a", "ab", "abc", "with.dots", "penstock.file", "ü"])
def test_a_delegation_token_stands_for_the_token_that_it_was_made_for(token: str) -> None:
    made = delegate(token, 1000)
    assert made.count(".") == 2
    assert json.loads(base64.b64decode(made.split(".")[1])) == {"exp": 1000}
    assert delegated(made) == delegated(made, 1000) == token


@pytest.mark.parametrize("token", ["", "plain", "penstock.", "penstock.a.b", "penstock.e30=.YQ", "penstock.MTA=.YQ"])
def test_any_other_token_is_itself(token: str) -> None:
    assert delegated(token, 1e12) == token


def test_a_delegation_token_ends_some_time_after_its_client_has_asked_for_a_new_one() -> None:
    made = delegate("token", 1000)
    assert delegated(made, 1300) == "token"
    with pytest.raises(TokenExpired):
        delegated(made, 1301)
