"""A worker that tests source clients of the connector protocol, in any language: `penstock conformance source`.

    scenarios ──▶ Play, for one client: events in, effects and findings out ◀──▶ Stage, with the sockets

`rules.py` has what a client must do, in the sentences of docs/connector-protocol.md; `scenarios.py` is the table of
scenarios, in terms of `steps.py`. Only `stage.py` does input and output.
"""

from penstock.testing.source_conformance.play import Play, Verdict
from penstock.testing.source_conformance.rules import Finding, Rule
from penstock.testing.source_conformance.scenarios import SCENARIOS, Scenario, chosen
from penstock.testing.source_conformance.stage import Stage

__all__ = ["SCENARIOS", "Finding", "Play", "Rule", "Scenario", "Stage", "Verdict", "chosen"]
