"""Run as a process: appends numbered events from where its writer stopped, and prints what is acknowledged.

python appending_process.py ADDRESS SEGMENT WRITER_ID COUNT
"""

import sys
import uuid

from penstock.client.segments import SegmentClient


def main(address: str, segment: str, writer_id: str, count: str) -> None:
    with SegmentClient(address) as client:
        appender = client.appender(segment, uuid.UUID(writer_id), block_bytes=1000, window_bytes=20_000)
        for number in range((appender.last_number or 0) + 1, int(count) + 1):
            appender.append(b"event %d" % number)
            if number % 500 == 0:
                appender.flush()
                print(appender.acknowledged, flush=True)
        appender.flush()
        print("done", flush=True)
        appender.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
