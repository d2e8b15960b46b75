"""The applications in the documentation are valid: each is loaded as it is printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from penstock.application.config import ConfigErrors, load
from penstock.application.config.sections import (
    BindingSection,
    BreakerSection,
    ConnectorSection,
    PipelineSection,
    ReconnectSection,
)
from penstock.application.config.types import KnownTypes
from penstock.connectors.mistakes import keys_of

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"spark: *['\"]?([\w./-]+\.py):(\w+)")
_NAME = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_FILE = re.compile(r"\$\{file:([^}]+)\}")


def applications() -> Iterator[tuple[str, str]]:
    """Those blocks of YAML that have a connector: where, and what."""
    for document in DOCUMENTS:
        for number, match in enumerate(_BLOCK.finditer(document.read_text())):
            if "connector:" in match[1]:
                yield f"{document.relative_to(ROOT)} {number}", match[1]


@pytest.mark.parametrize(("where", "text"), [pytest.param(*each, id=each[0]) for each in applications()])
def test_it_loads(where: str, text: str, tmp_path: Path) -> None:
    for file, function in _FUNCTION.findall(text):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / file).open("a") as code:
            code.write(_definition(where, function))
    for secret in _FILE.findall(text):
        text = text.replace(secret, str(tmp_path / "secret"))
        (tmp_path / "secret").write_text('"string"' if secret.endswith(".avsc") else "hidden")
    (tmp_path / "app.yaml").write_text(text)
    environ = dict.fromkeys(_NAME.findall(text), "7000")
    try:
        load(tmp_path / "app.yaml", KnownTypes(), environ)
    except ConfigErrors as error:
        pytest.fail(f"{where}:\n{error}")


def _definition(where: str, function: str) -> str:
    """As the document has it, or else with one parameter."""
    document = (ROOT / where.partition(" ")[0]).read_text()
    found = re.search(rf"^def {function}\(.*?\)(?: ->[^:]*)?:", document, re.MULTILINE | re.DOTALL)
    return f"{found[0] if found else f'def {function}(events):'}\n    pass\n"


@pytest.mark.parametrize(
    "section", [ConnectorSection, PipelineSection, BindingSection, BreakerSection, ReconnectSection]
)
def test_every_key_is_described(section: type[BaseModel]) -> None:
    text = (ROOT / "docs" / "applications.md").read_text()
    assert [key for key in keys_of(section, ()) if f"`{key}`" not in text] == []


def test_there_are_some() -> None:
    assert sum(where.startswith("docs/applications.md") for where, _ in applications()) >= 5
    assert sum(where.startswith("docs/connectors/") for where, _ in applications()) == len(KnownTypes().names())
