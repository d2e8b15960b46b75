"""The parts of docs/connector-protocol.md that are drawn from the tables and the vectors. To draw them again:

python -m tests.protocol.connector.drawn
"""

from pathlib import Path

from penstock.protocol.connector import Use
from penstock.protocol.connector.session import SINK_TRANSITIONS, SOURCE_TRANSITIONS, mermaid
from penstock.protocol.connector.stream import STREAM_TRANSITIONS
from penstock.protocol.connector.two_phase import ROUND_TRANSITIONS

from .vectors import TWO_PHASE_VECTORS, VECTORS

PAGE = Path(__file__).parents[3] / "docs" / "connector-protocol.md"
END = "<!-- end -->"


def parts() -> dict[str, str]:
    """What belongs between `<!-- drawn: NAME -->` and `<!-- end -->`."""
    return {
        "source session": _fenced(mermaid(SOURCE_TRANSITIONS, Use.SOURCE), "mermaid"),
        "sink session": _fenced(mermaid(SINK_TRANSITIONS, Use.SINK), "mermaid"),
        "stream": _fenced(mermaid(STREAM_TRANSITIONS), "mermaid"),
        "round": _fenced(mermaid(ROUND_TRANSITIONS), "mermaid"),
        "vectors": _fenced("\n".join(f"{f.wire_name:<17} {text}" for f, text in VECTORS + TWO_PHASE_VECTORS)),
    }


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def drawn(page: str) -> str:
    """The page with all its parts drawn again."""
    for name, text in parts().items():
        begin = f"<!-- drawn: {name} -->\n"
        assert begin in page, f"{PAGE} has no place for {name}"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
