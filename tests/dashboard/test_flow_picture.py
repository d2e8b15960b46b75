"""The picture of the flow, from a status."""

import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.dashboard.flow_picture import (
    _EDGE_PHONE,
    _GAP_PHONE,
    BOX_WIDTH,
    BOXES_MAX,
    Box,
    Graph,
    Line,
    drawn,
    link,
    show_rate,
)
from penstock.dashboard.flow_picture import graph as flow_of
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import StartingPipeline
from penstock.protocol.api.status import (
    Blockage,
    ConnectorStatus,
    PipelineRates,
    RatesStatus,
    SinkRates,
    WorkerStatus,
)


def graph(*lines: tuple[str, str], trouble: str = "") -> Graph:
    names = dict.fromkeys(name for line in lines for name in line)
    boxes = {name: Box(name, name, "text", link("source", name=name), name == trouble) for name in names}
    return Graph(boxes, [Line(start, end) for start, end in lines])


def columns(found: Graph) -> list[list[str]]:
    return [[box.key for box in column] for column in found.columns()]


def test_each_box_is_to_the_right_of_what_leads_to_it() -> None:
    found = graph(("a", "p"), ("p", "q"), ("b", "q"), ("q", "sink:files"), ("p", "sink:other"))
    assert columns(found) == [["a", "b"], ["p"], ["q"], ["sink:files", "sink:other"]]


def test_a_circle_ends() -> None:
    assert {key for column in columns(graph(("a", "b"), ("b", "a"))) for key in column} == {"a", "b"}


def test_segments_that_are_read_themselves_stand_beside_those_of_sources() -> None:
    found = graph(("source:a", "segments:a"), ("segments:a", "p"), ("segments:raw", "p"))
    assert columns(found) == [["source:a"], ["segments:a", "segments:raw"], ["p"]]


def test_on_a_phone_it_is_not_wider_than_the_screen() -> None:
    found = graph(*((f"source:{number}", "p") for number in range(9)))
    root = ET.fromstring(drawn(found, is_phone=True))
    assert int(root.attrib["width"]) <= 390 - 2 * 12
    assert len([*root.iter("rect")]) == 10


# Of a status.


def test_on_a_phone_a_line_that_passes_boxes_runs_between_the_columns() -> None:
    pairs = [("a", "a2"), ("b", "b2"), ("c", "c2")]
    assert not any("V" in path for path in _phone_paths(pairs[:2]))
    passing = _phone_paths(pairs)  # c is below a and b, and a2 and b2 below c
    between = _EDGE_PHONE + BOX_WIDTH + _GAP_PHONE / 2
    assert len(passing) == 3
    assert all(f" {between} " in path and "V" in path for path in passing)


def _phone_paths(lines: list[tuple[str, str]]) -> list[str]:
    root = ET.fromstring(drawn(graph(*lines), is_phone=True))
    return [one.attrib["d"] for one in root.iter() if one.tag == "path"]


def status(**parts: Any) -> WorkerStatus:
    """With nothing but these parts."""
    nothing: dict[str, Any] = {"sources": {}, "rates": RATES}
    nothing |= dict.fromkeys(("blockages", "connectors", "pipelines", "starting", "sinks"), ())
    return cast("WorkerStatus", SimpleNamespace(**nothing | parts))


RATES = RatesStatus(
    seconds=10,
    sources={},
    pipelines={"p": PipelineRates(rows_in_per_second=12)},
    sinks={"p": {"alerts": SinkRates(rows_per_second=3)}},
)


def sink(name: str, pipeline: str = "p") -> SinkStatus:
    plain = {"port": "out", "guarantee": "at-least-once", "votes": False, "state": "READY", "reason": ""}
    return SinkStatus(pipeline=pipeline, sink=name, url=name, at=0, sent=0, parked=0, **plain)  # type: ignore[arg-type]


def connector(name: str, state: str, reason: str = "") -> ConnectorStatus:
    return ConnectorStatus(name=name, id=name, instance="01", type="tcp-client", state=state, reason=reason)


def test_lines_have_rates_and_a_sink_whose_connector_is_away_is_in_trouble() -> None:
    shown = flow_of(
        status(
            starting=[StartingPipeline("p", ["orders"], None)],
            sinks=[sink("alerts"), sink("files")],
            connectors=[connector("alerts", "disconnected", "refused"), connector("files", "connected")],
            sources={"alerts": SimpleNamespace(messages=0, segments=[], retained_bytes=0, sessions=0)},
        )
    )
    assert [*shown.boxes] == ["source:orders", "pipeline:p", "sink:p/alerts", "sink:p/files"]
    assert [key for key, box in shown.boxes.items() if box.trouble] == ["sink:p/alerts"]
    assert [(line.end, line.text, line.trouble) for line in shown.lines] == [
        ("sink:p/alerts", "out: 3.0 rows/s", True),
        ("sink:p/files", "out: 0 rows/s", False),
        ("pipeline:p", "12 rows/s", False),
    ]


def test_who_waits_for_a_sink_is_not_to_blame() -> None:
    blockage = Blockage(kind="sink", link="sink files", text="blocked by sink files", pipeline="p")
    shown = flow_of(status(starting=[StartingPipeline("p", [], None)], sinks=[sink("files")], blockages=[blockage]))
    assert [key for key, box in shown.boxes.items() if box.trouble] == ["sink:p/files"]
    assert shown.boxes["pipeline:p"].text == "waits for sink files"


def test_a_sink_of_another_pipeline_with_the_same_name_is_not_to_blame() -> None:
    blockage = Blockage(kind="sink", link="sink file", text="blocked by sink file", pipeline="p")
    starting = [StartingPipeline("p", [], None), StartingPipeline("q", [], None)]
    shown = flow_of(status(starting=starting, sinks=[sink("file"), sink("file", "q")], blockages=[blockage]))
    assert [key for key, box in shown.boxes.items() if box.trouble] == ["sink:p/file"]


def test_sources_that_have_no_box_are_listed() -> None:
    names = [f"source-{number:03}" for number in range(BOXES_MAX + 2)]
    shown = flow_of(status(starting=[StartingPipeline("p", names, None)]))
    assert shown.left_out == names[BOXES_MAX:]
    assert not any(name in key for key in shown.boxes for name in shown.left_out)


def test_names_of_others_cannot_become_markup() -> None:
    shown = drawn(graph(('<script>"x"', "p&q"), trouble="p&q"))
    root = ET.fromstring(shown)
    texts = [element.text for element in root.iter() if element.tag == "text"]
    assert '<script>"x"' in texts
    assert "⚠ p&q" in texts
    assert "<script" not in shown


def test_what_is_in_trouble_shows_without_colours() -> None:
    shown = drawn(graph(("a", "b"), trouble="b"))
    assert 'class="box trouble"' in shown
    assert "⚠ b" in shown


def test_nothing_deployed_has_no_picture() -> None:
    assert drawn(Graph()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.44, "0.4"), (12.3, "12"), (1234, "1,234"), (45_678, "46k"), (3_400_000, "3.4M")],
)
def test_rates_are_short(value: float, text: str) -> None:
    assert show_rate(value) == text
