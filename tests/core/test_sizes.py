import pytest

from penstock.core.errors import RequestError
from penstock.core.sizes import format_size, parse_size, show_size, size_unit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1234", 1234),
        ("512 B", 512),
        ("64KiB", 64 * 1024),
        (" 1.5 mib ", 3 << 19),
        ("10GB", 10**10),
        ("2TiB", 2 << 40),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 parsec", "1e3", "1.MiB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is not a size") as caught:
        parse_size(text)
    assert "64MiB" in caught.value.hint


def test_sizes_are_written_in_the_largest_unit_they_are_a_whole_number_of() -> None:
    assert [*map(format_size, (1 << 30, 3 << 20, 1536, 1000))] == ["1GiB", "3MiB", "1536", "1000"]


def test_people_read_sizes_in_units_of_1024() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 40 << 20: "40.0 MiB", 3 << 50: "3072.0 TiB"}
    assert {size: show_size(size) for size in sizes} == sizes
    assert [size_unit(size) for size in (0.0, 2048.0, 5 << 60)] == [(1, "B"), (1024, "KiB"), (1 << 40, "TiB")]
