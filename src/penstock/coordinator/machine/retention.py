"""How long data are kept: until they are complete, for ever, for a time, or up to a size."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Retention:
    """`complete`: until every registered pipeline has completed them, and Spark will not read them again. `keep`: for
    ever. `time`: `amount` microseconds; `size`: `amount` bytes of each segment: these two may remove what a pipeline
    still needs, and its reader is then told so.
    """

    mode: Literal["complete", "keep", "time", "size"] = "complete"
    amount: int = 0


COMPLETE = Retention()
