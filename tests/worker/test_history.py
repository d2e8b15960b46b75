"""What a worker remembers of the last hour."""

from collections.abc import Mapping

from penstock.access.principals import Principal, Role
from penstock.client.coordinator import CoordinatorClient
from penstock.coordinator.flow import Flow, PastEpoch, PipelineFlow
from penstock.protocol.api.history import EpochTimes, WorkerHistory
from penstock.worker.history import SAMPLES_MAX, SERIES_MAX, History, joined
from penstock.worker.visibility import visible_history
from tests.support.running_worker import RunningWorker


class Measured:
    def __init__(self) -> None:
        self.values: Mapping[str, float] = {}
        self.now = 1000.0

    def history(self) -> History:
        return History(lambda: self.values, lambda: self.now)


def test_a_series_has_a_value_for_each_sample() -> None:
    measured = Measured()
    history = measured.history()
    for number, values in enumerate([{"a": 1.0}, {"a": 2.0, "b": 0.12345}, {"b": 1.0}]):
        measured.values, measured.now = values, 1000 + 5.02 * number
        history.sample()
    reply = history.reply(None)
    assert reply.times == [1000, 1005, 1010]
    assert reply.series == {"a": [1.0, 2.0, None], "b": [None, 0.123, 1.0]}


def test_it_is_bounded_in_time_and_in_names() -> None:
    measured = Measured()
    history = measured.history()
    measured.values = {f"source/{number}/events": 1.0 for number in range(SERIES_MAX + 7)}
    for _ in range(SAMPLES_MAX + 3):
        history.sample()
    reply = history.reply(None)
    assert len(reply.times) == SAMPLES_MAX
    assert len(reply.series) == SERIES_MAX
    assert {len(values) for values in reply.series.values()} == {SAMPLES_MAX}


def test_what_is_not_kept_is_named_to_who_asks_for_it() -> None:
    measured = Measured()
    history = measured.history()
    measured.values = {f"source/{number}/events": 1.0 for number in range(SERIES_MAX + 7)}
    history.sample()
    kept, left_out = "source/0/events", f"source/{SERIES_MAX}/events"
    reply = history.reply(None, [kept, left_out, "source/gone/events"])
    assert ([*reply.series], reply.not_kept) == ([kept], [left_out])
    assert joined([reply, reply]).not_kept == [left_out]
    assert visible_history(reply, Principal("me", Role.READ, ("0",))).not_kept == []
    measured.values = {}
    history.sample()
    assert history.reply(None, [left_out]).not_kept == []


def test_what_is_gone_for_an_hour_is_forgotten() -> None:
    measured = Measured()
    history = measured.history()
    measured.values = {"old": 1.0}
    history.sample()
    measured.values = {"new": 1.0}
    for _ in range(2 * SAMPLES_MAX):
        history.sample()
    assert {*history.reply(None).series} == {"new"}


def test_only_what_is_wanted_is_in_a_reply() -> None:
    flow = Flow(lambda: 50.0)
    flow.pipelines = {"p": PipelineFlow(0), "q": PipelineFlow(0)}
    measured = Measured()
    history = measured.history()
    measured.values = {"pipeline/p/rows_in": 1.0, "pipeline/q/rows_in": 2.0}
    history.sample()
    reply = history.reply(flow, ["pipeline/p/rows_in"])
    assert (reply.series, [*reply.epochs]) == ({"pipeline/p/rows_in": [1.0]}, ["p"])


def test_epochs_have_the_times_of_the_wall() -> None:
    flow = Flow(lambda: 50.0)
    pipeline = flow.pipelines["p"] = PipelineFlow(0)
    pipeline.past.append(PastEpoch(3, None, 40.0, 45.0, 49.0))
    assert Measured().history().reply(flow).epochs == {"p": [EpochTimes(3, None, 990.0, 995.0, 999.0)]}


def test_shards_are_joined_by_time() -> None:
    one = WorkerHistory(seconds=5, times=[5, 10], series={"a": [1.0, 2.0]}, epochs={"p": []})
    two = WorkerHistory(seconds=5, times=[10, 15], series={"a": [10.0, None], "b": [3.0, 4.0]}, epochs={"q": []})
    both = joined([one, two])
    assert both.times == [5, 10, 15]
    assert both.series == {"a": [1.0, 12.0, None], "b": [None, 3.0, 4.0]}
    assert both.epochs == {"p": [], "q": []}


def test_a_principal_sees_its_own_part() -> None:
    series = {"source/mine/events": [1.0], "source/theirs/events": [2.0], "sink/theirs/mine/rows": [3.0]}
    whole = WorkerHistory(seconds=5, times=[5], series=series, epochs={"mine/a": [], "theirs": []})
    seen = visible_history(whole, Principal("me", Role.READ, ("mine",)))
    assert (seen.series, seen.epochs) == ({"source/mine/events": [1.0]}, {"mine/a": []})


def test_a_worker_answers_with_its_history_and_who_asks(worker: RunningWorker) -> None:
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        assert client.history().seconds == 5
        assert client.principal().role == "admin"
