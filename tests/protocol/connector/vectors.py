"""Every frame and every two-phase message with its bytes, written out by hand from the protocol's design."""

from penstock.protocol.connector import (
    NOTHING_YET,
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

STREAM = 0xBD29AF3B35FBE79A

# The hex is in groups: length, tag, then the fields one by one.

VECTORS: list[tuple[Frame, str]] = [
    (
        Hello("0.0.1", b"Dragons-Love-Tacos", "celsius at least once", "instance"),
        (
            "0000003d 00 0005302e302e31 0012447261676f6e732d4c6f76652d5461636f73 "
            "001563656c73697573206174206c65617374206f6e6365 0008696e7374616e6365"
        ),
    ),
    (Ok(100), "00000005 01 00000064"),
    (Error("no"), "00000005 02 00026e6f"),
    (Notify(STREAM, "key_0"), "00000018 03 bd29af3b35fbe79a 00056b65795f30 0000000000000000"),
    (NotifyAck(True, STREAM, NOTHING_YET), "00000012 04 01 bd29af3b35fbe79a ffffffffffffffff"),
    (NotifyAck(False, STREAM, 0), "00000012 04 00 bd29af3b35fbe79a 0000000000000000"),
    (
        Message(STREAM, 1, 0, b"key_0", b"hello, world!"),
        "0000002d 05 bd29af3b35fbe79a 0000000000000001 0000000000000000 00056b65795f30 68656c6c6f2c20776f726c6421",
    ),
    (
        Message(STREAM, 2**64 - 2, -1, b"", b""),
        "0000001b 05 bd29af3b35fbe79a fffffffffffffffe ffffffffffffffff 0000",
    ),
    (Ack(50, (Acked(STREAM, 50),)), "00000019 06 00000032 00000001 bd29af3b35fbe79a 0000000000000032"),
    (Ack(1), "00000009 06 00000001 00000000"),
    (Restart("host:7000"), "0000000e 07 00000009 686f73743a37303030"),
    (Restart(), "00000005 07 00000000"),
    (EndOfStream(STREAM), "00000009 08 bd29af3b35fbe79a"),
    (Migrate("host", 7000), "0000000b 0a 00000004 686f7374 1b58"),
    (MigrateAck(), "00000001 0b"),
]

# Behind the length: the MESSAGE's tag, stream 0, id 0, time 0, no key; then tag and fields of the two-phase message.

WRAPPED = "05 0000000000000000 0000000000000000 0000000000000000 0000"

TWO_PHASE_VECTORS: list[tuple[Frame, str]] = [
    (ListUncommitted(258), f"00000024 {WRAPPED} c9 0000000000000102"),
    (
        ReplyUncommitted(258, (b"p:1:0", b"")),
        f"00000031 {WRAPPED} ca 0000000000000102 00000002 0005703a313a30 0000",
    ),
    (
        Phase1(b"p:1:0", (Range(1, 258, 65536),)),
        f"0000003f {WRAPPED} cb 0005703a313a30 00000001 0000000000000001 0000000000000102 0000000000010000",
    ),
    (Reply(b"p:1:0", True), f"00000024 {WRAPPED} cc 0005703a313a30 01"),
    (Phase2(b"p:1:0", False), f"00000024 {WRAPPED} cd 0005703a313a30 00"),
]
