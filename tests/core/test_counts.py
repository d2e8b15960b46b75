from penstock.core.counts import show_count


def test_a_number_has_its_noun_in_the_singular_or_the_plural() -> None:
    assert [show_count(count, "epoch") for count in (0, 1, 2000)] == ["0 epochs", "1 epoch", "2,000 epochs"]
    assert [show_count(count, "row out", "rows out") for count in (1, 2)] == ["1 row out", "2 rows out"]
