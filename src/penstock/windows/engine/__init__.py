"""The window engine: pure functions on Arrow tables. `prepare` runs where events are read, `advance` where state is.

A batch covers the events between two cuts. They are compared with `before`, the watermark of the first cut, and
applied; then `after`, the watermark of the second, fires and purges. A batch that is run again from the same state
produces the same results. `prepare_order` and `advance_order` do the same for events in order.
"""

from penstock.windows.engine.batch import advance, prepare
from penstock.windows.engine.bucket import Advanced, BucketState, Prepared, Stats
from penstock.windows.engine.order import Ordered, OrderPlan, advance_order, prepare_order
from penstock.windows.engine.plan import BUCKET, TIME, Plan

__all__ = [
    "BUCKET",
    "TIME",
    "Advanced",
    "BucketState",
    "OrderPlan",
    "Ordered",
    "Plan",
    "Prepared",
    "Stats",
    "advance",
    "advance_order",
    "prepare",
    "prepare_order",
]
