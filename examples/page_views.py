"""Views and visitors of each page per minute. A minute is emitted when all streams have passed it, and again if clicks
arrive up to ten minutes late. Later clicks leave through the port `late`, invalid JSON through `err`, with the original
bytes.

penstock run examples/page_views.py
penstock dead-letters list page_views
A click is the JSON of a user and a page, from the source `clicks`.
"""

from pyspark.sql import DataFrame

from penstock import dead_letters, windows
from penstock.spark import pipeline


@pipeline
def page_views(clicks: DataFrame) -> DataFrame:
    return windows.aggregate(
        dead_letters.decode_json(clicks, "user string, page string"),
        windows.tumbling("1 minute"),
        keys=["page"],
        allowed_lateness="10 minutes",
        views=windows.count(),
        visitors=windows.approx_distinct("user"),
    )
