"""Goals: what a ratio is to reach, or what it must not exceed."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median


def missed(ratios: Mapping[str, float], goals: Mapping[str, float], at_most: Collection[str] = ()) -> dict[str, float]:
    """The ratios that are short of their goals, or above them where the goal is an upper limit (`at_most`)."""
    return {
        name: ratios[name]
        for name, goal in goals.items()
        if name in ratios and (ratios[name] > goal if name in at_most else ratios[name] < goal)
    }


def ratios_as_json(
    round_ratios: Mapping[str, Sequence[float]], goals: Mapping[str, float], at_most: Collection[str] = ()
) -> dict[str, object]:
    """What every benchmark's JSON tells of its ratios: their medians, the rounds, and which goals are missed."""
    medians = {name: median(values) for name, values in round_ratios.items()}
    return {
        "ratios": {name: round(value, 3) for name, value in medians.items()},
        "ratio_rounds": {name: [round(value, 3) for value in values] for name, values in round_ratios.items()},
        "goals": dict(goals),
        "at_most": list(at_most),
        "missed": {name: round(value, 3) for name, value in missed(medians, goals, at_most).items()},
    }


def goal_cell(name: str, goals: Mapping[str, float], at_most: Collection[str] = ()) -> str:
    """Empty where there is no goal."""
    if name not in goals:
        return ""
    return f"{'≤' if name in at_most else '≥'} {goals[name]:g}"


def spread_cell(values: Collection[float], *, is_missed: bool) -> str:
    """The median, and from where to where the rounds went."""
    colour = "red" if is_missed else "green"
    return f"[{colour}]{median(values):.2f}[/] ({min(values):.2f}–{max(values):.2f})"
