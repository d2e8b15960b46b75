"""Arbitrary frames."""

from hypothesis import strategies as st

from penstock.protocol.connector import (
    Ack,
    Acked,
    EndOfStream,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    Restart,
)

u16s = st.integers(0, 2**16 - 1)
u32s = st.integers(0, 2**32 - 1)
u64s = st.integers(0, 2**64 - 1)
i64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
blobs = st.binary(max_size=100)

messages = st.builds(Message, u64s, u64s, i64s, blobs, blobs)

frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, texts, blobs, texts, texts),
    st.builds(Ok, u32s),
    st.builds(Error, texts),
    st.builds(Notify, u64s, texts, u64s),
    st.builds(NotifyAck, st.booleans(), u64s, u64s),
    messages,
    st.builds(Ack, u32s, st.lists(st.builds(Acked, u64s, u64s), max_size=4).map(tuple)),
    st.builds(Restart, texts),
    st.builds(EndOfStream, u64s),
    st.builds(Migrate, texts, u16s),
    st.just(MigrateAck()),
)

two_phase: st.SearchStrategy[Frame] = st.one_of(
    st.builds(ListUncommitted, u64s),
    st.builds(ReplyUncommitted, u64s, st.lists(blobs, max_size=4).map(tuple)),
    st.builds(Phase1, blobs, st.lists(st.builds(Range, u64s, u64s, u64s), max_size=4).map(tuple)),
    st.builds(Reply, blobs, st.booleans()),
    st.builds(Phase2, blobs, st.booleans()),
)
