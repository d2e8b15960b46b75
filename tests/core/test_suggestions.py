"""A name that does not exist: the one that was probably meant, whatever its case, or all existing ones."""

from penstock.core.suggestions import NAMES_SHOWN_MAX, nearest, suggestion


def test_the_nearest_name_is_suggested_whatever_the_case() -> None:
    assert suggestion("stratingoffsets", ["startingOffsets", "endingOffsets"]) == 'Did you mean "startingOffsets"?'


def test_without_a_similar_name_all_names_are_listed_in_order() -> None:
    assert suggestion("zzz", {"b", "a"}) == "Available: a, b."
    assert suggestion("zzz", [], "Its ports") == "Its ports: none."
    assert nearest("zzz", ["a"]) is None


def test_a_long_list_is_cut() -> None:
    names = [f"name{number:03}" for number in range(NAMES_SHOWN_MAX + 1)]
    hint = suggestion("zzz", names)
    assert names[NAMES_SHOWN_MAX - 1] in hint
    assert names[NAMES_SHOWN_MAX] not in hint
