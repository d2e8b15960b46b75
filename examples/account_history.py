"""The bookings of each account in the order in which they were made, whichever till has sent them, and however late: a
booking is held until all tills have passed its time. A till that sends one later still is behind the watermark: that
booking leaves through the port `late`.

penstock run examples/account_history.py
A booking is the JSON of an account and an amount, from the source `tills`; each till is a stream.
"""

from pyspark.sql import DataFrame

from penstock import dead_letters, windows
from penstock.spark import pipeline


@pipeline
def account_history(tills: DataFrame) -> DataFrame:
    bookings = dead_letters.decode_json(tills, "account string, amount double")
    return windows.ordered(bookings, keys=["account"]).select("account", "amount", "event_time", "stream")
