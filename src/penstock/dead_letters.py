"""Dead letters: rows that a function could not process leave through `err`, and the others continue.

    frame = dead_letters.decode_json(events, "user string, amount double")
    frame = dead_letters.apply(frame, enrich, "user string, country string", keep=["event_time", "segment", "offset"])
    frame = frame.where("country != 'XX'")

Frames are plain: a dead letter is staged by the task that finds it, beside the query, with its original bytes, its
position and the reason, and leaves with the commit of its epoch.
"""

from penstock.spark.dead_letters.apply import apply
from penstock.spark.dead_letters.json_decoder import decode_json

__all__ = ["apply", "decode_json"]
