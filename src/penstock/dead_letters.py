"""Letters: rows that could not be processed, or came late, kept beside the others until they leave.

    frame = letters.decode_json(events, "user string, amount double")
    frame = letters.apply(frame, enrich, "user string, country string", keep=["event_time"])
    frame = letters.where(frame, "country != 'XX'")

A frame with letters has a column `letter`, null in the rows that are none. The pipeline's sink sends each letter to the
port that it names, `err` or `late`, with its original bytes, its position and the reason, in the commit of its epoch.
"""

from penstock.spark.dead_letters.apply import apply
from penstock.spark.dead_letters.frame import split, where
from penstock.spark.dead_letters.json_decoder import decode_json

__all__ = ["apply", "decode_json", "split", "where"]
