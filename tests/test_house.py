"""`script/house.py` on small trees: what is planted is found, with its place."""

from pathlib import Path

import pytest

from script import house


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with two modules, one of which imports the other."""
    write(tmp_path, "script/vocabulary.txt", "[modules]\nletters # dead_letters\n")
    write(tmp_path, "src/penstock/__init__.py", "")
    write(tmp_path, "src/penstock/store.py", "class Store: ...\n")
    write(tmp_path, "src/penstock/worker.py", "from penstock.store import Store\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def found_cycles(root: Path) -> list[list[str]]:
    return house.cycles(house.import_graph(house.read_modules(root)))


def findings(root: Path) -> list[str]:
    vocabulary = house.read_vocabulary(root / "script" / "vocabulary.txt")
    return [str(finding) for finding in house.forbidden(root, vocabulary, house.read_modules(root))]


def test_a_clean_tree_passes_and_prints_the_yardsticks(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(tree) == 0
    shown = capsys.readouterr().out
    assert "house: 2 lines in 3 files of src/penstock" in shown
    assert "modules under 40 lines: 2 (store 1; worker 1)" in shown
    assert "modules that one sibling alone imports: 1 (store by worker)" in shown


@pytest.mark.parametrize(
    "text",
    [
        "from penstock.worker import x\n",
        "import penstock.worker\n",
        "from penstock import worker\n",
        "from . import worker\n",
        "from .worker import x\n",
        "def f():\n    from penstock.worker import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.worker import x\n",
    ],
)
def test_a_cycle_fails_however_it_is_imported(tree: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(tree, "src/penstock/store.py", text)
    assert found_cycles(tree) == [["penstock.store", "penstock.worker", "penstock.store"]]
    assert house.main(tree) == 1
    assert "import cycle: penstock.store → penstock.worker → penstock.store" in capsys.readouterr().out


def test_a_long_cycle_is_shown_as_one_round_trip(tree: Path) -> None:
    write(tree, "src/penstock/a/__init__.py", "from penstock.worker import x\n")
    write(tree, "src/penstock/a/b.py", "from penstock.a import x\nfrom penstock.store import y\n")
    write(tree, "src/penstock/store.py", "from penstock.a.b import z\n")
    assert found_cycles(tree) == [
        ["penstock.a", "penstock.worker", "penstock.store", "penstock.a.b", "penstock.a"],
    ]


def test_a_name_of_a_package_is_not_an_import_of_all_its_modules(tree: Path) -> None:
    write(tree, "src/penstock/a/__init__.py", "x = 1\n")
    write(tree, "src/penstock/a/b.py", "from penstock.a import x\n")
    assert found_cycles(tree) == []


def test_a_module_with_a_forbidden_name_is_found(tree: Path) -> None:
    write(tree, "src/penstock/letters.py", "")
    write(tree, "src/penstock/dead_letters.py", "")
    assert findings(tree) == ["src/penstock/letters.py:1: 'letters'"]
    assert house.main(tree) == 1


@pytest.mark.parametrize(
    ("section", "path", "text", "line"),
    [
        ("messages", "src/penstock/store.py", 'x = 1\nraise ValueError("who holds the chain?")\n', 2),
        ("messages", "src/penstock/store.py", 'raise ValueError(f"{x} holds " f"the chain of {y}")\n', 1),
        ("messages", "src/penstock/store.py", "x = f\"{y or 'holds the chain'}\"\n", 1),
        ("messages", "src/penstock/store.py", '"""It\nHolds the\nchain."""\n', 2),
        ("docs", "docs/a/page.md", "A sink that\nholds the\nchain.\n", 2),
        ("docs", "README.md", "Holds the chain.\n", 1),
        ("docs", "CHANGELOG.md", "It holds the chain.\n", 1),
        ("docs", "sdk/node/src/client.ts", "// holds the chain\n", 1),
        ("tests", "tests/a/test_it.py", "async def test_who_holds_the_chain() -> None: ...\n", 1),
        ("command line", "README.md", "$ holds the chain\n", 1),
        ("command line", "tests/test_it.py", 'run("holds the chain")\n', 1),
    ],
)
def test_a_phrase_is_found_where_its_section_forbids_it(
    tree: Path, section: str, path: str, text: str, line: int
) -> None:
    write(tree, "script/vocabulary.txt", f"# why\n[{section}]\nholds the chain # blocked by\n")
    write(tree, path, text)
    assert findings(tree) == [f"{path}:{line}: 'holds the chain'"]


def test_a_phrase_is_whole_words_in_its_own_place(tree: Path) -> None:
    write(tree, "script/vocabulary.txt", "[messages]\nanew\n[docs]\nhosted:\n[tests]\nanew\n")
    write(tree, "src/penstock/store.py", 'x = "canewood"  # anew\nanew = "hosted:"\n')
    write(tree, "docs/page.md", "anew, unhosted:\n")
    write(tree, "tests/test_it.py", "def anew() -> None: ...\ndef test_canewood() -> None: ...\n")
    assert findings(tree) == []


def test_an_unknown_section_is_refused(tree: Path) -> None:
    write(tree, "script/vocabulary.txt", "[mesages]\nanew\n")
    with pytest.raises(SystemExit, match=r"vocabulary.txt:1: section \[mesages\] is not one of modules"):
        house.main(tree)


def test_classes_of_one_name_in_several_packages_are_reported(tree: Path) -> None:
    for package in ("a", "b"):
        write(tree, f"src/penstock/{package}/__init__.py", "class Settings: ...\nclass _Own: ...\n")
    modules = house.read_modules(tree)
    assert house.same_names(modules) == {"Settings": ["a", "b"]}
