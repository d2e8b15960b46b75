"""What Spark itself needs for a first batch: a session with its own settings, and a batch of its own stream without a
row, from Java to Java. Prints a line when each phase has ended, as `penstock run` does.

python -m bench.bare_session FOLDER
"""

import sys

STARTED, COMMITTED = "the session is ready", "the first batch is committed"


def main(folder: str) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    _print(STARTED)
    rows = session.readStream.format("rate").option("rowsPerSecond", 1).load().where("value < 0")
    query = rows.writeStream.format("noop").option("checkpointLocation", folder).trigger(once=True).start()
    query.awaitTermination()
    _print(COMMITTED)
    sys.stdin.read()  # until it is killed: what it has used is read from outside


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
