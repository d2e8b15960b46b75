"""The harness itself: it finds every step of a page, and distinguishes correct output from wrong output."""

from pathlib import Path

import pytest

from tests.docs.page import Command, File, matches, steps
from tests.docs.session import Session

PAGE = """\
# A page

```python
# hello.py
print("hello")
```

```bash
penstock worker
```

```console
$ python hello.py
hello
$ cat <<END
> two
> END
two
```
"""


SERVED = """\
```console
$ penstock run app.yaml
starting
…
```

```console
…
ready
```
"""


def test_what_a_running_command_prints_later_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(SERVED)
    (tmp_path / "penstock").write_text("#!/bin/sh\necho starting\necho other\necho ready\necho more\nexec sleep 100\n")
    (tmp_path / "penstock").chmod(0o755)
    with Session(tmp_path, tmp_path) as session:
        assert session.follow(tmp_path / "page.md") == 1


def test_files_and_commands_are_found_in_order(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert list(steps(tmp_path / "page.md")) == [
        File("hello.py", '# hello.py\nprint("hello")\n'),
        Command(13, "python hello.py", "hello"),
        Command(15, "cat <<END\ntwo\nEND", "two"),
    ]


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("done", "done\n"),
        ("at 2026-11-15T22:15:20.000Z", "at 2031-01-01T00:00:00.123Z"),
        ("took 3.1 s, 12 KiB", "took 12 s, 1.5 KiB"),
        ("│ a      │ 1 │\n└────────┴───┘", "│ a │ 1 │\n└──┴──┘"),
        ("first\n…\nlast", "first\n1\n2\nlast"),
        ("first\n…\nlast", "first\nlast"),
        ("on 127.0.0.1:7102 …", "on 127.0.0.1:40123 and more"),
    ],
)
def test_it_matches(output: str, printed: str) -> None:
    assert matches(output, printed)


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("done", ""),
        ("done", "done\nTraceback"),
        ("", "a warning"),
        ("total 5.0", "total 3.0"),
        ("took 3.1 s", "took long"),
        ("a.b", "axb"),
        ("at 2026-11-15T22:15:20.000Z", "at noon"),
    ],
)
def test_it_does_not_match(output: str, printed: str) -> None:
    assert not matches(output, printed)


def test_a_session_takes_the_steps(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    with Session(tmp_path, tmp_path) as session:
        assert session.follow(tmp_path / "page.md") == 2


@pytest.mark.parametrize(
    ("command", "why"),
    [("echo wrong", "it printed\nwrong"), ("echo right; exit 3", "ended with 3")],
)
def test_a_session_fails_where_the_page_is_wrong(tmp_path: Path, command: str, why: str) -> None:
    (tmp_path / "page.md").write_text(f"```console\n$ {command}\nright\n```\n")
    with Session(tmp_path, tmp_path) as session, pytest.raises(AssertionError, match=why):
        session.follow(tmp_path / "page.md")
