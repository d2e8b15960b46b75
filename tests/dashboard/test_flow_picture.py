"""The picture of the flow, from a status."""

import xml.etree.ElementTree as ET

import pytest

from penstock.dashboard.flow_picture import Box, Graph, Line, drawn, link, show_rate


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
