"""When a query that has failed is started again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    restarts_max: int = 6
    """In a row; with the pauses between them about a minute, in which a worker or a disk comes back. What fails
    longer is not passing."""

    pause_seconds_first: float = 1.0
    pause_seconds_max: float = 30.0
    """Each pause is twice the one before, up to this."""

    healthy_seconds: float = 60.0
    """A query that has made progress for so long has recovered: what fails then is counted anew."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often in a row a pipeline was started again."""

    in_a_row: int = 0

    def after_failure(self, healthy_for_seconds: float, policy: RestartPolicy) -> tuple["Restarts", float | None]:
        """The pause before the next start; None: it is given up. `healthy_for_seconds`: from the start of the query
        to its last progress.
        """
        before = 0 if healthy_for_seconds >= policy.healthy_seconds else self.in_a_row
        if before >= policy.restarts_max:
            return self, None
        pause = min(policy.pause_seconds_first * 2**before, policy.pause_seconds_max)
        return Restarts(before + 1), pause
