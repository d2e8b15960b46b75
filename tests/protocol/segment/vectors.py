"""Every message of both dialects with its bytes, written out by hand from the table in the protocol's design."""

from penstock.protocol.segment import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Attribute,
    AttributeUpdate,
    AttributeUpdated,
    AuthTokenCheckFailed,
    BeginAppendBlock,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTable,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    DeleteTable,
    EndAppendBlock,
    ErrorMessage,
    Event,
    GetAttribute,
    GetSegmentInfo,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    LocateSegment,
    MergeSegments,
    Message,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    Part,
    PartialEvent,
    PartialMessage,
    ReadSegment,
    ReadTable,
    ReadTableDelta,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentLocated,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    TableDeltaRead,
    TableEntriesRead,
    TableEntry,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableNotEmpty,
    TableRead,
    TableUpdated,
    TruncateSegment,
    UpdateAttribute,
    UpdateTable,
    WrongHost,
)

WRITER = bytes.fromhex("00112233445566778899aabbccddeeff")
ATTRIBUTE = bytes.fromhex("f0e0d0c0b0a090807060504030201000")

# The hex is in groups: type, length, then the fields one by one.

DOCUMENT_VECTORS: list[tuple[Message, str]] = [
    (Padding(3), "ffffffff 00000003 000000"),
    (PartialMessage(Part.BEGIN, b"ab"), "fffffffe 00000003 00 6162"),
    (PartialMessage(Part.MIDDLE, b""), "fffffffe 00000001 01"),
    (PartialMessage(Part.END, b"c"), "fffffffe 00000002 02 63"),
    (Event(b"hello"), "00000000 00000005 68656c6c6f"),
    (SetupAppend(WRITER, "seg"), "00000001 00000015 00112233445566778899aabbccddeeff 0003736567"),
    (
        AppendSetup("seg", WRITER, 258),
        "00000002 0000001d 0003736567 00112233445566778899aabbccddeeff 0000000000000102",
    ),
    (
        BeginAppendBlock(WRITER, 258, 65536),
        "00000003 0000001c 00112233445566778899aabbccddeeff 0000000000000102 00010000",
    ),
    (
        EndAppendBlock(WRITER, 65794, 65536),
        "00000004 0000001c 00112233445566778899aabbccddeeff 0000000000010102 00010000",
    ),
    (DataAppended(WRITER, 65794), "00000007 00000018 00112233445566778899aabbccddeeff 0000000000010102"),
    (ReadSegment("seg", 16, 1024), "00000009 00000011 0003736567 0000000000000010 00000400"),
    (
        SegmentRead("seg", 16, at_tail=True, end_of_segment=False, data=b"xyz"),
        "0000000a 00000011 0003736567 0000000000000010 01 78797a",
    ),
    (
        SegmentRead("seg", 16, at_tail=False, end_of_segment=True, data=b""),
        "0000000a 0000000e 0003736567 0000000000000010 02",
    ),
    (WrongHost("seg", "host", "why"), "00000032 00000010 0003736567 0004686f7374 0003776879"),
    (SegmentIsSealed("seg", "why", 9), "00000033 00000012 0003736567 0003776879 0000000000000009"),
    (SegmentAlreadyExists("seg", "why"), "00000034 0000000a 0003736567 0003776879"),
    (NoSuchSegment("seg", "why", 9), "00000035 00000012 0003736567 0003776879 0000000000000009"),
    (
        InvalidEventNumber(WRITER, "why", 9),
        "00000037 0000001d 00112233445566778899aabbccddeeff 0003776879 0000000000000009",
    ),
    (
        SegmentIsTruncated("seg", 8, "why", 4),
        "00000038 0000001a 0003736567 0000000000000008 0003776879 0000000000000004",
    ),
    (OperationUnsupported("merge", "why"), "00000039 0000000c 00056d65726765 0003776879"),
    (AuthTokenCheckFailed("why", 1), "0000003c 00000009 0003776879 00000001"),
    (ErrorMessage("seg", "why", 0), "0000003d 0000000e 0003736567 0003776879 00000000"),
    (KeepAlive(b"ping"), "00000064 00000004 70696e67"),
]

VERSIONED_VECTORS: list[tuple[Message, str]] = [
    (Hello(17, 5), "ffffff81 00000008 00000011 00000005"),
    (Padding(3), "ffffffff 00000003 000000"),
    (PartialEvent(b"ab"), "fffffffe 00000002 6162"),
    (Event(b"hello"), "00000000 00000005 68656c6c6f"),
    (
        SetupAppend(WRITER, "seg", "tok", 7),
        "00000001 00000022 0000000000000007 00112233445566778899aabbccddeeff 0003736567 0003746f6b",
    ),
    (
        AppendSetup("seg", WRITER, -(2**63), 7),
        "00000002 00000025 0000000000000007 0003736567 00112233445566778899aabbccddeeff 8000000000000000",
    ),
    (AppendBlock(WRITER, b"data"), "00000003 00000014 00112233445566778899aabbccddeeff 64617461"),
    (
        AppendBlockEnd(WRITER, 4, b"rest", 2, 258, 7),
        (
            "00000004 00000030 00112233445566778899aabbccddeeff 00000004 00000004 72657374"
            " 00000002 0000000000000102 0000000000000007"
        ),
    ),
    (
        ConditionalAppend(WRITER, 258, 16, bytes.fromhex("00000000 00000002 6869"), 7),
        (
            "00000005 00000032 00112233445566778899aabbccddeeff 0000000000000102 0000000000000010"
            " 00000000 00000002 6869 0000000000000007"
        ),
    ),
    (
        DataAppended(WRITER, 258, 257, 4096, 7),
        (
            "00000007 00000030 00112233445566778899aabbccddeeff 0000000000000102 0000000000000101"
            " 0000000000000007 0000000000001000"
        ),
    ),
    (
        ConditionalCheckFailed(WRITER, 258, 7),
        "00000008 00000020 00112233445566778899aabbccddeeff 0000000000000102 0000000000000007",
    ),
    (
        ReadSegment("seg", 16, 1024, "tok", 7),
        "00000009 0000001e 0003736567 0000000000000010 00000400 0003746f6b 0000000000000007",
    ),
    (
        SegmentRead("seg", 16, at_tail=True, end_of_segment=False, data=b"xyz", request_id=7),
        "0000000a 0000001e 0003736567 0000000000000010 01 00 00000003 78797a 0000000000000007",
    ),
    (GetSegmentInfo("seg", "tok", 7), "0000000b 00000012 0000000000000007 0003736567 0003746f6b"),
    (
        SegmentInfo(
            "seg", exists=True, sealed=False, deleted=True, modified=3, write_offset=32, start_offset=16, request_id=7
        ),
        "0000000c 00000028 0000000000000007 0003736567 01 00 01 0000000000000003 0000000000000020 0000000000000010",
    ),
    (
        CreateSegment("seg", target_rate=5, scale_type=-1, rollover_size=64, token="tok", request_id=7),
        "00000014 0000001f 0000000000000007 0003736567 00000005 ff 0003746f6b 0000000000000040",
    ),
    (SegmentCreated("seg", 7), "00000015 0000000d 0000000000000007 0003736567"),
    (SealSegment("seg", "tok", 7), "0000001c 00000012 0000000000000007 0003736567 0003746f6b"),
    (SegmentSealed("seg", 7), "0000001d 0000000d 0000000000000007 0003736567"),
    (DeleteSegment("seg", "tok", 7), "0000001e 00000012 0000000000000007 0003736567 0003746f6b"),
    (SegmentDeleted("seg", 7), "0000001f 0000000d 0000000000000007 0003736567"),
    (
        GetAttribute("seg", ATTRIBUTE, "tok", 7),
        "00000022 00000022 0000000000000007 0003736567 f0e0d0c0b0a090807060504030201000 0003746f6b",
    ),
    (Attribute(-2, 7), "00000023 00000010 0000000000000007 fffffffffffffffe"),
    (
        UpdateAttribute("seg", ATTRIBUTE, 6, 5, "tok", 7),
        (
            "00000024 00000032 0000000000000007 0003736567 f0e0d0c0b0a090807060504030201000"
            " 0000000000000006 0000000000000005 0003746f6b"
        ),
    ),
    (AttributeUpdated(success=True, request_id=7), "00000025 00000009 0000000000000007 01"),
    (
        TruncateSegment("seg", 16, "tok", 7),
        "00000026 0000001a 0000000000000007 0003736567 0000000000000010 0003746f6b",
    ),
    (SegmentTruncated("seg", 7), "00000027 0000000d 0000000000000007 0003736567"),
    (
        WrongHost("seg", "host", "why", 7),
        "00000032 00000018 0000000000000007 0003736567 0004686f7374 0003776879",
    ),
    (
        SegmentIsSealed("seg", "why", 9, 7),
        "00000033 0000001a 0000000000000007 0003736567 0003776879 0000000000000009",
    ),
    (SegmentAlreadyExists("seg", "why", 7), "00000034 00000012 0000000000000007 0003736567 0003776879"),
    (
        NoSuchSegment("seg", "why", 9, 7),
        "00000035 0000001a 0000000000000007 0003736567 0003776879 0000000000000009",
    ),
    (
        InvalidEventNumber(WRITER, "why", 9, 7),
        "00000037 00000025 00112233445566778899aabbccddeeff 0000000000000007 0003776879 0000000000000009",
    ),
    (
        SegmentIsTruncated("seg", 8, "why", 4, 7),
        "00000038 00000022 0000000000000007 0003736567 0000000000000008 0003776879 0000000000000004",
    ),
    (OperationUnsupported("merge", "why", 7), "00000039 00000014 0000000000000007 00056d65726765 0003776879"),
    (
        MergeSegments("to", "from", (AttributeUpdate(ATTRIBUTE, 4, 6, 5),), "tok", 7),
        (
            "0000003a 0000003c 0000000000000007 0002746f 000466726f6d 0003746f6b 00000001"
            " f0e0d0c0b0a090807060504030201000 04 0000000000000006 0000000000000005"
        ),
    ),
    (
        SegmentsMerged("to", "from", 32, 7),
        "0000003b 0000001a 0000000000000007 0002746f 000466726f6d 0000000000000020",
    ),
    (AuthTokenCheckFailed("why", 1, 7), "0000003c 00000011 0000000000000007 0003776879 00000001"),
    (ErrorMessage("seg", "why", 0, 7), "0000003d 00000016 0000000000000007 0003736567 0003776879 00000000"),
    (
        CreateTransientSegment(WRITER, "seg", "tok", 7),
        ("00000028 00000022 0000000000000007 00112233445566778899aabbccddeeff 0003736567 0003746f6b"),
    ),
    (CreateTable("seg", "tok", 7), "00000046 00000012 0000000000000007 0003736567 0003746f6b"),
    (DeleteTable("seg", True, "tok", 7), "00000047 00000013 0000000000000007 0003736567 01 0003746f6b"),
    (
        UpdateTable("seg", (TableEntry(b"k1", 16, b"va1"),), -1, "tok", 7),
        (
            "0000004a 0000003b 0000000000000007 0003736567 0003746f6b 00000001 0000000e 00000002 6b31"
            " 0000000000000010 00000007 00000003 766131 ffffffffffffffff"
        ),
    ),
    (TableUpdated((1, -1), 7), "0000004b 0000001c 0000000000000007 00000002 0000000000000001 ffffffffffffffff"),
    (
        RemoveTableKeys("seg", (TableKey(b"k1", 16),), 258, "tok", 7),
        (
            "0000004c 00000030 0000000000000007 0003736567 0003746f6b 00000001 0000000e 00000002 6b31"
            " 0000000000000010 0000000000000102"
        ),
    ),
    (TableKeysRemoved("seg", 7), "0000004d 0000000d 0000000000000007 0003736567"),
    (
        ReadTable("seg", (TableKey(b"k1", 16),), "tok", 7),
        ("0000004e 00000028 0000000000000007 0003736567 0003746f6b 00000001 0000000e 00000002 6b31 0000000000000010"),
    ),
    (
        TableRead("seg", (TableEntry(b"k1", 16, b"va1"),), 7),
        (
            "0000004f 0000002e 0000000000000007 0003736567 00000001 0000000e 00000002 6b31"
            " 0000000000000010 00000007 00000003 766131"
        ),
    ),
    (TableNotEmpty("seg", "why", 7), "00000050 00000012 0000000000000007 0003736567 0003776879"),
    (TableKeyDoesNotExist("seg", "why", 7), "00000051 00000012 0000000000000007 0003736567 0003776879"),
    (TableKeyBadVersion("seg", "why", 7), "00000052 00000012 0000000000000007 0003736567 0003776879"),
    (
        ReadTableKeys("seg", 10, b"on", "tok", 7),
        ("00000053 0000001c 0000000000000007 0003736567 0003746f6b 0000000a 00000002 6f6e"),
    ),
    (
        TableKeysRead("seg", (TableKey(b"k1", 16),), b"on", 7),
        (
            "00000054 00000029 0000000000000007 0003736567 00000001 0000000e 00000002 6b31"
            " 0000000000000010 00000002 6f6e"
        ),
    ),
    (
        ReadTableEntries("seg", 10, b"on", "tok", 7),
        ("00000055 0000001c 0000000000000007 0003736567 0003746f6b 0000000a 00000002 6f6e"),
    ),
    (
        TableEntriesRead("seg", (TableEntry(b"k1", 16, b"va1"),), b"on", 7),
        (
            "00000056 00000034 0000000000000007 0003736567 00000001 0000000e 00000002 6b31"
            " 0000000000000010 00000007 00000003 766131 00000002 6f6e"
        ),
    ),
    (
        TableDeltaRead("seg", (TableEntry(b"k1", 16, b"va1"),), False, True, 258, 7),
        (
            "00000057 00000038 0000000000000007 0003736567 00000001 0000000e 00000002 6b31"
            " 0000000000000010 00000007 00000003 766131 00 01 0000000000000102"
        ),
    ),
    (
        ReadTableDelta("seg", 16, 10, "tok", 7),
        ("00000058 0000001e 0000000000000007 0003736567 0003746f6b 0000000000000010 0000000a"),
    ),
    (
        ConditionalBlockEnd(WRITER, 258, 16, b"data", 7),
        (
            "00000059 00000030 00112233445566778899aabbccddeeff 0000000000000102 0000000000000010"
            " 00000004 64617461 0000000000000007"
        ),
    ),
    (KeepAlive(), "00000064 00000000"),
    (
        LocateSegment("seg", 4, 258, "here", "tok", 7, objects=True),
        "000003f1 00000029 0003736567 0000000000000004 0000000000000102 000468657265 0003746f6b 0000000000000007 01",
    ),
    (
        SegmentLocated(
            "seg",
            4,
            (LocatedFile("/a", 5, 6),),
            (LocatedRow(0, 32, 9, 64, 2**32 - 1, 1, 63),),
            7,
            (LocatedObject("s3://b", "k", 16),),
        ),
        (
            "000003f2 00000068 0003736567 0000000000000004 00000001 00022f61 0000000000000005 0000000000000006"
            " 00000001 00000000 0000000000000020 00000009 00000040 ffffffff 00000001 0000003f 0000000000000007"
            " 00000001 000673333a2f2f62 00016b 0000000000000010"
        ),
    ),
]
