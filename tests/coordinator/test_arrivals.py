"""When the bytes of segments arrived, from samples."""

from penstock.coordinator.flow import SAMPLES_MAX, SPACING_SECONDS, Arrivals


def test_the_first_byte_after_an_offset_has_the_time_of_its_sample() -> None:
    arrivals = Arrivals()
    arrivals.note("s", 10, 1.0)
    arrivals.note("s", 30, 2.0)
    assert arrivals.oldest("s", 0) == 1.0
    assert arrivals.oldest("s", 9) == 1.0
    assert arrivals.oldest("s", 10) == 2.0
    assert arrivals.oldest("s", 30) is None
    assert arrivals.oldest("unknown", 0) is None


def test_bytes_that_were_seen_already_do_not_arrive_again() -> None:
    arrivals = Arrivals()
    arrivals.note("s", 10, 1.0)
    arrivals.note("s", 10, 5.0)
    assert arrivals.oldest("s", 0) == 1.0


def test_samples_are_bounded_and_arrival_times_at_most_slightly_early() -> None:
    arrivals = Arrivals()
    seconds = 20 * SAMPLES_MAX
    for second in range(1, seconds + 1):
        arrivals.note("s", second, float(second))
        assert len(arrivals._samples["s"]) <= SAMPLES_MAX
    for offset in range(0, seconds, 97):
        oldest = arrivals.oldest("s", offset)
        assert oldest is not None
        assert offset + 1 - seconds / SAMPLES_MAX * 4 <= oldest <= offset + 1


def test_after_pruning_samples_are_fine_grained_again() -> None:
    arrivals = Arrivals()
    for second in range(1, 3 * SAMPLES_MAX):
        arrivals.note("s", second, float(second))
    arrivals.prune("s", 3 * SAMPLES_MAX)
    start = 3 * SAMPLES_MAX
    arrivals.note("s", start + 1, start + 1.0, begin=start)
    arrivals.note("s", start + 2, start + 1.0 + 2 * SPACING_SECONDS)
    assert arrivals.oldest("s", start + 1) == start + 1.0 + 2 * SPACING_SECONDS


def test_the_rows_of_a_sample_are_divided_by_bytes_and_add_up() -> None:
    arrivals = Arrivals()
    arrivals.note("out", 110, 1.0, begin=10, rows=7)
    arrivals.note("out", 210, 2.0, begin=110, rows=100)
    assert arrivals.rows("out", 10, 110) == 7
    assert arrivals.rows("out", 60, 160) == 4 + 50
    assert sum(arrivals.rows("out", at, at + 1) for at in range(300)) == 107
    assert arrivals.rows("out", 0, 10) == 0


def test_segments_that_no_pipeline_reads_are_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.note("a", 10, 1.0)
    arrivals.note("b", 10, 1.0)
    arrivals.keep(["b"])
    assert arrivals.oldest("a", 0) is None
    assert arrivals.oldest("b", 0) == 1.0
