"""`script/bench connectors`: every codec and interceptor does its work beside the plain library."""

import json

from bench.connectors import WORST, Effort, run


def test_every_case_has_a_ratio_and_the_worst_one_a_goal() -> None:
    report = run(Effort(rounds=1, events=50, total_s_max=30))
    found = json.loads(report.to_json())
    assert {"decode json", "decode avro", "in decompress zstd", "in split", "in kafka", "out kafka"} <= {
        *found["mb_per_s"]
    }
    assert found["ratios"][WORST] == min(found["ratios"].values())
    assert all(rate > 0 for rate in found["mb_per_s"].values())
