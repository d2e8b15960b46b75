"""Roles and prefixes: who may do what."""

import pytest

from penstock.access.principals import Access, Grant, Principal, Role, digest
from penstock.core.errors import Forbidden, Unauthenticated

SHOP = Principal("shop", Role.WRITE, ("shop-", "common"))


@pytest.mark.parametrize("role", list(Role))
def test_a_role_includes_those_before_it_and_no_other(role: Role) -> None:
    principal = Principal("p", role)
    allowed = [other for other in Role if principal.may(other)]
    assert allowed == list(Role)[: list(Role).index(role) + 1]


def test_a_role_with_prefixes_applies_to_names_that_start_with_one_of_them() -> None:
    assert SHOP.may(Role.WRITE, "shop-north")
    assert SHOP.may(Role.READ, "common")
    assert not SHOP.may(Role.WRITE, "shop")
    assert not SHOP.may(Role.DEPLOY, "shop-north")


def test_what_concerns_the_whole_worker_needs_a_principal_without_prefixes() -> None:
    assert not SHOP.may(Role.READ)
    assert Principal("all", Role.READ).may(Role.READ)


def test_a_refusal_names_the_role_the_limits_and_what_would_be_needed() -> None:
    with pytest.raises(Forbidden) as refused:
        SHOP.check(Role.DEPLOY, "orders", "pipeline 'orders'")
    assert str(refused.value) == (
        "'shop' has the role write for names that start with shop- or common; this needs deploy on pipeline 'orders'"
    )
    assert "penstock access" in refused.value.hint


ACCESS = Access.of([Grant(SHOP, digest("t1")), Grant(Principal("cert", Role.READ), certificate="client.example.org")])


def test_a_token_counts_before_a_certificate() -> None:
    assert ACCESS.principal("t1", ["client.example.org"]) is SHOP
    assert ACCESS.principal("", ["other", "client.example.org"]).name == "cert"


@pytest.mark.parametrize(("token", "names"), [("", []), ("t2", []), ("t2", ["client.example.org"]), ("", ["other"])])
def test_a_client_without_credentials_is_refused(token: str, names: list[str]) -> None:
    with pytest.raises(Unauthenticated):
        ACCESS.principal(token, names)


def test_without_a_token_one_is_anonymous_where_that_is_allowed_but_a_wrong_token_is_still_refused() -> None:
    access = Access.of([Grant(Principal("anonymous", Role.READ))])
    assert access.principal("").name == "anonymous"
    with pytest.raises(Unauthenticated):
        access.principal("wrong")
