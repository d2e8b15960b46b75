"""The flow of an application as text."""

from dataclasses import replace

from penstock.cli.flow_drawing import Step, drawn


def step(name: str, *sources: str, ports: tuple[str, ...] = ("out",), note: str = "", **sinks: str) -> Step:
    return Step(name, note, sources, ports, sinks)


def test_it_goes_from_sources_through_pipelines_to_sinks() -> None:
    about = {"orders": "http-server, at-least-once", "turnover": "file, exactly-once, transactional"}
    one = step("per-shop", "orders", ports=("out", "err"), note="windows fused with the readers", turnover="out")
    assert drawn([replace(one, about=about)]) == [
        "orders (http-server, at-least-once)",
        "└─ per-shop, windows fused with the readers",
        "   ├─ out → turnover (file, exactly-once, transactional)",
        "   └─ err: stored as pipeline:per-shop/err",
    ]


def test_a_pipeline_that_reads_another_is_below_its_port_and_one_with_two_sources_is_drawn_once() -> None:
    first = step("clean", "a", "b", files="out")
    second = step("count", "pipeline:clean/out", table="out")
    assert drawn([second, first]) == [
        "a",
        "└─ clean",
        "   ├─ out → files",
        "   └─ out, read by",
        "      └─ count",
        "         └─ out → table",
        "b",
        "└─ clean (above)",
    ]


def test_pipelines_in_a_circle_and_without_the_one_that_they_read_are_drawn_too() -> None:
    circle = [step("x", "pipeline:y/out"), step("y", "pipeline:x/out")]
    assert drawn(circle) == [
        "x",
        "└─ out, read by",
        "   └─ y",
        "      └─ out, read by",
        "         └─ x (above)",
    ]
    assert drawn([circle[0]])[:2] == ["pipeline:y/out", "└─ x"]
