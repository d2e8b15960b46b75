"""What Pravega's own Python client does in these tests, in a process of its own: `python client.py URI SCENARIO ARGS`.

The result is printed as one line of JSON; lines before it say how far the program is. The client is in a process
because its threads live as long as the process, and because a reader must be killed.
"""

import asyncio
import json
import os
import select
import sys
import time
from typing import Any

import pravega_client  # type: ignore[import-untyped]

Manager = Any


def say(line: str) -> None:
    print(line, flush=True)


def manager(m: Manager) -> Any:
    policy, retention = pravega_client.StreamScalingPolicy, pravega_client.StreamRetentionPolicy
    result: dict[str, Any] = {"scope": [m.create_scope("managed"), m.create_scope("managed")]}
    fixed = policy.fixed_scaling_policy(2)
    created = [m.create_stream_with_policy("managed", "s", fixed, retention.none(), ["a", "b"]) for _ in range(2)]
    result["stream"] = created
    result["tags"] = m.get_stream_tags("managed", "s")
    rates = policy.auto_scaling_policy_by_data_rate(10, 2, 1)
    m.update_stream_with_policy("managed", "s", rates, retention.by_size(1000), ["c"])
    result["new tags"] = m.get_stream_tags("managed", "s")
    result["lists"] = ["managed" in m.list_scope(), m.list_stream("managed")]
    result["refused"] = [_fails(lambda: m.delete_stream("managed", "s")), _fails(lambda: m.delete_scope("managed"))]
    result["invalid"] = [_fails(lambda: m.create_scope("connector")), _fails(lambda: m.create_stream("none", "s", 1))]
    result["deleted"] = [m.seal_stream("managed", "s"), m.delete_stream("managed", "s"), m.delete_scope("managed")]
    result["gone"] = "managed" not in m.list_scope()
    return result


def _fails(action: Any) -> bool:
    try:
        action()
    except Exception:
        return True
    return False


def write(m: Manager, scope: str, first: str, count: str, keys: str) -> Any:
    """Events `KEY:NUMBER`, with as many routing keys, or none. Reports each hundred when it is durable."""
    writer = m.create_writer(scope, "s", 100)
    for number in range(int(first), int(first) + int(count)):
        key = f"k{number % int(keys)}" if int(keys) else None
        writer.write_event(f"{key}:{number}", routing_key=key)
        if number % 100 == 99:
            writer.flush()
            say(f"written {number + 1}")
    writer.flush()
    return int(count)


def write_until_told(m: Manager, scope: str, keys: str) -> Any:
    """As `write`, until there is a line to read; then the number of events, and a last one for each key."""
    writer, count = m.create_writer(scope, "s", 100), 0
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        for number in range(count, count + 100):
            writer.write_event(f"k{number % int(keys)}:{number}", routing_key=f"k{number % int(keys)}")
        writer.flush()
        count += 100
        say(f"written {count}")
    for key in range(int(keys)):
        writer.write_event(f"k{key}:end", routing_key=f"k{key}")
    writer.flush()
    return count


def read(m: Manager, scope: str, group: str, reader: str, count: str) -> Any:
    """Reads so many events; the group begins at the head of the stream."""
    return asyncio.run(_read(m.create_reader_group(group, scope, "s"), reader, int(count)))


async def _read(
    group: Any, name: str, count: int = 0, lasts: frozenset[str] = frozenset(), *, reports: bool = False
) -> list[str]:
    """Until there are so many events, and the last ones are among them."""
    reader = group.create_reader(name)
    say("reader is there")
    events: list[str] = []
    while len(events) < count or not lasts <= {*events}:
        slice_ = await reader.get_segment_slice_async()
        found = [event.data().decode() for event in slice_]
        events += found
        if reports and found:
            say(json.dumps(found))
        _let_its_threads_return()
        reader.release_segment(slice_)
    _let_its_threads_return()
    reader.reader_offline()
    return events


def _let_its_threads_return() -> None:
    """From resolving a future: `reader_offline` and `release_segment` wait for these threads without letting go of
    Python's lock, which they need, until their requests time out after 30 s.
    """
    while len(sys._current_frames()) > 1:
        time.sleep(0.001)


def read_to_the_end(m: Manager, scope: str, group: str, keys: str) -> Any:
    """Reads what `write_until_told` writes."""
    lasts = frozenset(f"k{key}:end" for key in range(int(keys)))
    events = asyncio.run(_read(m.create_reader_group(group, scope, "s"), "r", lasts=lasts))
    return [event for event in events if event not in lasts]


def read_and_report(m: Manager, scope: str, group: str) -> Any:
    """Reads until it is killed, and reports each slice."""
    return asyncio.run(_read(m.create_reader_group(group, scope, "s"), "killed", count=sys.maxsize, reports=True))


def take_offline(m: Manager, scope: str, group: str, reader: str) -> Any:
    m.create_reader_group(group, scope, "s").reader_offline(reader)
    return True


def positions(m: Manager, scope: str, count: str) -> Any:
    """A group reads so many events, and another one begins where it was: it reads those that were written since."""
    group = m.create_reader_group("first", scope, "s")
    before = asyncio.run(_read(group, "r", int(count)))
    cut = group.get_streamcut()
    write(m, scope, count, count, "5")
    after = asyncio.run(_read(m.create_reader_group("second", scope, "s", stream_cut=cut), "r", int(count)))
    return [before, cut.get_segment_offset_map(), after]


def transactions(m: Manager, scope: str) -> Any:
    writer = m.create_transaction_writer(scope, "s", 17)
    first = writer.begin_txn()
    for number in range(10):
        first.write_event(f"committed {number}", routing_key=f"k{number}")
    states = [first.is_open()]
    again = writer.get_txn(first.get_txn_id())
    states.append(again.is_open())
    first.commit_timestamp(123)
    states.append(first.is_open())
    second = writer.begin_txn()
    second.write_event("aborted")
    second.abort()
    states += [second.is_open(), _fails(lambda: second.write_event("late"))]
    say("transactions have ended")
    return [states, read(m, scope, "readers", "r", "10")]


def begin(m: Manager, scope: str) -> Any:
    """A transaction that begins before a scaling, and is committed after it: waits for a line in between."""
    writer = m.create_transaction_writer(scope, "s", 18)  # which pings its transactions as long as it exists
    transaction = writer.begin_txn()
    transaction.write_event("inside", routing_key="k")
    say("begun")
    sys.stdin.readline()
    transaction.commit()
    return True


def byte_stream(m: Manager, scope: str) -> Any:
    stream = m.create_byte_stream(scope, "s")
    stream.write(b"hello ")
    stream.write(b"world")
    stream.flush()
    five, result = bytearray(5), []
    stream.readinto(five)
    result.append(five.decode())
    stream.seek(6, 0)
    result.append(stream.tell())
    stream.readinto(five)
    result.append(five.decode())
    stream.truncate(4)
    result += [stream.current_head_offset(), stream.current_tail_offset()]
    again = m.create_byte_stream(scope, "s")
    again.seek(4, 0)
    again.readinto(five)
    result.append(five.decode())
    stream.write(b"!")
    stream.flush()
    result.append(again.current_tail_offset())
    return result


def large(m: Manager, scope: str, size: str) -> Any:
    writer = m.create_writer(scope, "s")
    for data in (b"first", bytes(int(size)), b"last"):
        writer.write_event_bytes(data)
    writer.flush()

    async def main() -> list[int]:
        reader = m.create_reader_group("readers", scope, "s").create_reader("r")
        sizes: list[int] = []
        while len(sizes) < 3:
            slice_ = await reader.get_segment_slice_async()
            sizes += [len(event.data()) for event in slice_]
            _let_its_threads_return()
            reader.release_segment(slice_)
        return sizes

    return asyncio.run(main())


def create(m: Manager, scope: str, segments: str) -> Any:
    m.create_scope(scope)
    return m.create_stream(scope, "s", int(segments))


SCENARIOS = [
    manager,
    write,
    write_until_told,
    read,
    read_to_the_end,
    positions,
    read_and_report,
    take_offline,
    transactions,
    begin,
    byte_stream,
    large,
]


def main() -> None:
    uri, scenario, *arguments = sys.argv[1:]
    is_authenticated = bool(os.environ.get("pravega_client_auth_password"))  # noqa: SIM112  the client's own name
    client = pravega_client.StreamManager(uri, is_authenticated, uri.startswith("tls://"))
    run: Any = {one.__name__: one for one in [*SCENARIOS, create]}[scenario]
    print(json.dumps(run(client, *arguments)), flush=True)
    os._exit(0)  # its threads are not worth waiting for


if __name__ == "__main__":
    main()
