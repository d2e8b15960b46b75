"""Tables that fit a screen."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from penstock.cli.screen import Column, Level, Row, Section, fitted, lines_taken, rendered, shares
from penstock.cli.texts import shortened_in_the_middle

COLUMNS = (Column("NAME", is_name=True), Column("STATE", is_left=True), Column("MORE", is_optional=True))


def section(ok: int, bad: int = 0, name: str = "thing") -> Section:
    rows = [*(Row((f"{name}-{n}", "OK", "1")) for n in range(ok)), *(Row(("bad", "BAD", "2"), Level.BAD),) * bad]
    return Section(name, COLUMNS, rows, "all fine")


def plain(one: Section, shown: int, width: int = 80) -> list[str]:
    return [line.plain for line in rendered(one, shown, width)]


def test_without_a_limit_all_rows_are_shown() -> None:
    assert shares([section(100), section(3)], None) == [100, 3]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4), st.integers(4, 60))
def test_what_is_shown_never_takes_more_lines_than_there_are(counts: list[tuple[int, int]], room: int) -> None:
    sections = [section(ok, bad) for ok, bad in counts]
    shown = shares(sections, room)
    assert sum(len(rendered(one, k, 80)) for one, k in zip(sections, shown, strict=True)) <= room


def test_what_is_wrong_in_a_later_table_comes_before_what_is_right_in_an_earlier_one() -> None:
    first, second = section(20), section(20, bad=2)
    shown = shares([first, second], 12)
    assert shown[1] >= 2
    assert plain(second, 2)[1].startswith("bad")


def test_rows_that_do_not_fit_are_counted_with_what_is_wrong_with_them() -> None:
    assert plain(section(5), 0) == ["… 5 things: all fine"]
    assert plain(section(5), 3)[-1] == "… 2 more things: all fine"
    assert plain(section(5, bad=2), 0) == ["… 7 things: 2 need attention (--all)"]
    assert plain(section(5, bad=2), 2)[-1] == "… 5 more things: all fine"
    assert plain(section(1), 0) == ["… 1 thing: all fine"]
    assert lines_taken(3, 5) == len(plain(section(5), 3))


def test_long_names_are_shortened_before_an_optional_column_is_dropped() -> None:
    rows = [["NAME", "STATE", "MORE"], ["n" * 60, "OK", "1"]]
    kept, widths = fitted(COLUMNS, rows, 50)
    assert kept == [0, 1, 2]
    assert sum(widths) + 4 == 50
    kept, widths = fitted(COLUMNS, rows, 25)
    assert kept == [0, 1]
    assert widths == [18, 5]


def test_an_optional_column_that_is_empty_is_left_out() -> None:
    assert fitted(COLUMNS, [["NAME", "STATE", "MORE"], ["n", "OK", ""]], 80)[0] == [0, 1]


def test_names_are_shortened_in_the_middle() -> None:
    assert shortened_in_the_middle("orders-per-region", 9) == "orde…gion"
    assert shortened_in_the_middle("orders", 6) == "orders"


def test_wide_characters_and_control_characters_do_not_break_the_table() -> None:
    one = Section("thing", COLUMNS, [Row(("注文" * 20, "OK", "")), Row(("a\x1b[2J", "OK", ""))])
    lines = plain(one, 2, 40)
    assert all(cell_len(line) <= 40 for line in lines)
    assert "\x1b" not in "".join(lines)
