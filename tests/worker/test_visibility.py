"""What a principal with prefixes sees of pipelines that an owner has connected with those of others."""

from typing import Any

import pytest

from penstock.access.principals import Principal, Role
from penstock.protocol.api.pipelines import PipelineStatus, QueryFailure, WatermarkBlocker
from penstock.worker.visibility import visible_pipelines

SHOP = Principal("shop", Role.DEPLOY, ("shop-",))
HIDDEN = "something that this principal may not read"


def status(name: str, *sources: str, **more: Any) -> PipelineStatus:
    known: dict[str, Any] = dict.fromkeys(
        ("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved", "lag_bytes"), 0
    )
    known |= {"undelivered_bytes": 0, "watermark": None, "blocked": None, "heartbeat_age_seconds": None}
    return PipelineStatus(name=name, state="RUNNING", inputs={"in": sources}, **(known | more))


def seen(*pipelines: PipelineStatus) -> dict[str, PipelineStatus]:
    return {one.name: one for one in visible_pipelines(pipelines, SHOP)}


WAITING: dict[str, Any] = {"open_windows_wait": "waiting for bank", "failure": QueryFailure("bank is gone", 1, None)}


def test_what_depends_on_sources_of_others_is_not_named() -> None:
    blocker = WatermarkBlocker("bank", 1, "payroll", 0)
    one = status("shop-a", "shop-s", "bank", watermark_blocked_by=blocker, open_windows_sources=["bank"], **WAITING)
    shown = seen(one)["shop-a"]
    assert shown.inputs == {"in": ["shop-s"]}
    assert (shown.watermark_blocked_by, shown.open_windows_sources) == (None, [])
    assert shown.open_windows_wait == f"waiting for {HIDDEN}"
    assert shown.failure == QueryFailure("its query has failed", 1, None)


def test_neither_is_what_depends_on_them_further_upstream() -> None:
    shown = seen(status("shop-a", "bank"), status("shop-b", "pipeline:shop-a/out", **WAITING))["shop-b"]
    assert shown.inputs == {"in": ["pipeline:shop-a/out"]}
    assert "bank" not in repr(shown)


def test_pipelines_that_read_each_other_are_followed_once() -> None:
    assert [*seen(status("shop-a", "pipeline:shop-b/out"), status("shop-b", "pipeline:shop-a/out"))] == [
        "shop-a",
        "shop-b",
    ]


@pytest.mark.parametrize(
    ("reader", "blocked"), [("bank-reads", f"blocked by {HIDDEN}"), ("shop-reads", "blocked by the reader")]
)
def test_readers_of_its_output_are_named_only_to_those_who_may_read_them(reader: str, blocked: str) -> None:
    found = seen(status("shop-a", "shop-s", blocked="blocked by the reader"), status(reader, "pipeline:shop-a/out"))
    assert found["shop-a"].blocked == blocked


def test_its_own_part_is_unchanged() -> None:
    one = status("shop-a", "shop-s", **WAITING)
    assert seen(one)["shop-a"] == PipelineStatus(**{**_fields(one), "inputs": {"in": ["shop-s"]}})
    everyone = Principal("owner", Role.ADMIN)
    both = [one, status("bank", "bank")]
    assert visible_pipelines(both, everyone) == both


def _fields(one: PipelineStatus) -> dict[str, Any]:
    return {name: getattr(one, name) for name in PipelineStatus.__slots__} | {"open_windows_sources": []}
