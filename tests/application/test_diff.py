"""What a changed application changes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.application.deployments import connector_changes, links_of, pipeline_changes, rebinding
from penstock.application.plan import plan_of
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import Deployment
from tests.application.deployments import connector, deployed, deployments, link, pipeline

_OUT = link("connector/a/out", "pipeline/p/in")
_IN = link("pipeline/p/out", "connector/b/in")
_SMALL = deployed(connector("a"), connector("b"), pipeline("p"), _OUT, _IN)


class Running:
    """What runs, as seen from outside. Does what `Changes` says, and nothing else."""

    def __init__(self) -> None:
        self.deployment = Deployment()
        self.connectors: dict[str, object] = {}
        self.settings: dict[str, object] = {}
        self.links: dict[str, object] = {}
        self.pipelines: dict[str, object] = {}
        self.starts: dict[str, int] = {}
        self.given: dict[str, frozenset[str]] = {}
        self.bound: dict[str, dict[str, SinkSpec]] = {}

    def apply(self, new: Deployment) -> None:
        todo, pipelines = connector_changes(self.deployment, new), pipeline_changes(self.deployment, new)
        for name in todo.stop:
            del self.connectors[name], self.settings[name], self.links[name]
        for name in todo.start:
            assert name not in self.connectors
            self.connectors[name] = new.connectors[name].config
            self.starts[name] = self.starts.get(name, 0) + 1
        for name in todo.start | todo.configure:
            self.settings[name] = new.connectors[name].quota_bytes
        for name in todo.start | todo.relink:
            self.links[name] = links_of(new, name)
        for name in (*pipelines.stop, *pipelines.restart):
            del self.pipelines[name]
        for name in pipelines.start:
            assert name not in self.pipelines
            self.pipelines[name] = plan_of(new, name)
        for name in new.pipelines:
            self._rebind(name, new)
        self.deployment = new

    def _rebind(self, name: str, new: Deployment) -> None:
        bound = self.bound.setdefault(name, {})
        todo = rebinding(wanted(new, name), self.given.get(name, frozenset()), bound)
        for sink in todo.unbind:
            del bound[sink]
        for sink in todo.moved:  # when the pipeline restarts
            del bound[sink]
        for sink, spec in {**todo.bind, **{sink: wanted(new, name)[sink] for sink in todo.moved}}.items():
            assert sink not in bound or bound[sink].port == spec.port, "a sink does not change its port"
            bound[sink] = spec
        self.given[name] = frozenset(wanted(new, name))


def wanted(deployment: Deployment, name: str) -> dict[str, SinkSpec]:
    return {sink: SinkSpec(port, to) for sink, (port, to) in deployment.sink_names(name).items()}


@given(st.lists(deployments(), min_size=1, max_size=6))
def test_any_sequence_of_deployments_ends_in_the_state_of_the_last(sequence: list[Deployment]) -> None:
    running = Running()
    for one in sequence:
        running.apply(one)
    last = sequence[-1]
    assert running.connectors == {name: spec.config for name, spec in last.connectors.items()}
    assert running.settings == {name: spec.quota_bytes for name, spec in last.connectors.items()}
    assert running.links == {name: links_of(last, name) for name in last.connectors}
    assert running.pipelines == {name: plan_of(last, name) for name in last.pipelines}
    for name in last.pipelines:
        assert running.bound[name] == wanted(last, name)


@given(deployments(), deployments())
def test_a_connector_that_has_not_changed_is_never_restarted(old: Deployment, new: Deployment) -> None:
    running = Running()
    running.apply(old)
    running.apply(new)
    for name in old.connectors.keys() & new.connectors.keys():
        same = old.connectors[name].config == new.connectors[name].config
        assert running.starts[name] == (1 if same else 2)


@given(deployments())
def test_the_same_again_changes_nothing(one: Deployment) -> None:
    assert connector_changes(one, one) == connector_changes(Deployment(), Deployment())
    assert pipeline_changes(one, one) == pipeline_changes(Deployment(), Deployment())


def test_another_codec_restarts_the_pipeline_and_not_the_connector() -> None:
    other = replace(_SMALL, connectors={**_SMALL.connectors, "a": connector("a", codec="json")})
    todo = connector_changes(_SMALL, other)
    assert pipeline_changes(_SMALL, other).restart == {"p"}
    assert not todo.stop | todo.start | todo.relink


def test_another_quota_restarts_nothing() -> None:
    other = replace(_SMALL, connectors={**_SMALL.connectors, "a": connector("a", quota_bytes=5)})
    todo = connector_changes(_SMALL, other)
    assert todo.configure == {"a"}
    assert not todo.stop | todo.start
    assert not pipeline_changes(_SMALL, other).start


def test_a_new_sink_relinks_the_source_and_restarts_no_connector() -> None:
    more = deployed(
        *_SMALL.connectors.values(),
        connector("c"),
        pipeline("p"),
        *_SMALL.links,
        link("pipeline/p/out", "connector/c/in"),
    )
    todo = connector_changes(_SMALL, more)
    assert todo.start == {"c"}
    assert todo.relink == {"a"}
    assert not todo.stop


def test_sinks_that_people_have_bound_are_left_alone() -> None:
    theirs, ours = SinkSpec("out", "file:x"), SinkSpec("out", "b")
    todo = rebinding({}, {"b"}, {"b": ours, "mine": theirs})
    assert todo.unbind == {"b"}
    assert not todo.bind


def test_a_sink_that_several_ports_lead_to_is_one_for_each_port() -> None:
    both = deployed(connector("b"), pipeline("p"), _IN, link("pipeline/p/err", "connector/b/in"))
    assert _SMALL.sink_names("p") == {"b": ("out", "b")}
    assert both.sink_names("p") == {"b": ("out", "b"), "b.err": ("err", "b")}
