"""The suite passes a correct client, and finds every defect. No sockets, no clock."""

import re
from pathlib import Path

import pytest

from penstock.core.errors import RequestError
from penstock.testing.source_conformance import SCENARIOS, Rule, Scenario, chosen
from penstock.testing.source_conformance.rules import PAGE
from tests.testing.source_conformance.model_client import DEFECTS, ModelClient

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_correct_client_passes(scenario: Scenario) -> None:
    verdict = ModelClient().perform(scenario)
    assert (verdict.outcome, verdict.findings) == ("passed", ())


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_by_its_rule(defect: str) -> None:
    name, rule = DEFECTS[defect]
    verdict = ModelClient(defect).perform(*chosen([name]))
    assert [finding.rule and finding.rule.title for finding in verdict.findings] == [rule]
    is_advice = verdict.findings[0].is_warning
    assert verdict.outcome == ("passed" if is_advice else "failed")


def test_every_rule_has_a_defect_that_breaks_it() -> None:
    assert {rule for _, rule in DEFECTS.values()} == {rule.title for rule in Rule}


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.title)
def test_every_rule_is_a_sentence_of_the_protocol_s_page(rule: Rule) -> None:
    sections = re.split(r"^#+ (.+)$", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    texts = {title: " ".join(text.split()) for title, text in zip(sections[1::2], sections[2::2], strict=True)}
    assert rule.sentence in texts[rule.section]


def test_scenarios_on_migrate_are_skipped_for_a_client_that_does_not_announce_it() -> None:
    for scenario in SCENARIOS:
        outcome = ModelClient("no migrate").perform(scenario).outcome
        assert outcome == ("skipped" if scenario.migrates else "passed")


def test_a_scenario_that_does_not_exist_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(RequestError) as raised:
        chosen(["migrat"])
    assert "migrate" in raised.value.hint
