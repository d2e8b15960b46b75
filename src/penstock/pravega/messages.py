"""The messages of Pravega's controller service, as classes of protobuf.

The tables below are the fields of the public service: names, numbers and types. Enumerations are int32 here, and maps
are lists of pairs: on the wire they are the same.
"""

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"

_STREAM = "streamInfo=1 StreamInfo"
_TXN = f"{_STREAM}, txnId=2 TxnId"

_MESSAGES = {
    # What requests and replies consist of
    "StreamInfo": "scope=1 string, stream=2 string, accessOperation=3 int32",
    "ScopeInfo": "scope=1 string",
    "ContinuationToken": "token=1 string",
    "NodeUri": "endpoint=1 string, port=2 int32",
    "TxnId": "highBits=1 int64, lowBits=2 int64",
    "SegmentId": f"{_STREAM}, segmentId=2 int64",
    "SegmentRange": "segmentId=1 SegmentId, minKey=2 double, maxKey=3 double",
    "SegmentLocation": "segmentId=1 SegmentId, offset=2 int64",
    "SegmentEntry": "segment=1 SegmentRange, value=2 *int64",
    "KeyRange": "start=1 double, end=2 double",
    "Position": "key=1 int64, value=2 int64",
    "ScalingPolicy": "scaleType=1 int32, targetRate=2 int32, scaleFactor=3 int32, minNumSegments=4 int32",
    "RetentionPolicy": "retentionType=1 int32, retentionParam=2 int64, retentionMax=3 int64",
    "Tags": "tag=1 *string",
    "StreamCut": f"{_STREAM}, cut=2 *Position",
    # Scopes
    "ScopesRequest": "continuationToken=1 ContinuationToken",
    "ScopesResponse": "scopes=1 *string, continuationToken=2 ContinuationToken",
    "ExistsResponse": "exists=1 bool",
    "StreamsInScopeRequest": "scope=1 ScopeInfo, continuationToken=2 ContinuationToken",
    "StreamsInScopeWithTagRequest": "scope=1 ScopeInfo, tag=2 string, continuationToken=3 ContinuationToken",
    "StreamsInScopeResponse": "streams=1 *StreamInfo, continuationToken=2 ContinuationToken, status=3 int32",
    # Streams
    "StreamConfig": f"{_STREAM}, scalingPolicy=2 ScalingPolicy, retentionPolicy=3 RetentionPolicy, tags=4 Tags, "
    "timestampAggregationTimeout=5 int64",
    "Status": "status=1 int32",
    "ServerRequest": "",
    "ServerResponse": "nodeURI=1 *NodeUri",
    # Segments
    "SegmentRanges": "segmentRanges=1 *SegmentRange, delegationToken=2 string",
    "GetSegmentsRequest": f"{_STREAM}, timestamp=2 int64",
    "GetEpochSegmentsRequest": f"{_STREAM}, epoch=2 int32",
    "SegmentsAtTime": "segments=1 *SegmentLocation, delegationToken=2 string",
    "SuccessorResponse": "segments=1 *SegmentEntry, delegationToken=2 string",
    "Validity": "response=1 bool",
    "DelegationToken": "delegationToken=1 string",
    "ScaleRequest": f"{_STREAM}, sealedSegments=2 *int64, newKeyRanges=3 *KeyRange, scaleTimestamp=4 int64",
    "ScaleResponse": "status=1 int32, segments=2 *SegmentRange, epoch=3 int32",
    "ScaleStatusRequest": f"{_STREAM}, epoch=2 int32",
    # Transactions
    "CreateTxnRequest": f"{_STREAM}, lease=2 int64",
    "CreateTxnResponse": "txnId=1 TxnId, activeSegments=2 *SegmentRange, delegationToken=3 string",
    "TxnRequest": f"{_TXN}, writerId=3 string, timestamp=4 int64",
    "PingTxnRequest": f"{_TXN}, lease=3 int64",
    "TxnState": "state=1 int32",
    # Writers
    "TimestampFromWriter": "writer=1 string, position=2 StreamCut, timestamp=3 int64",
    "RemoveWriterRequest": "writer=1 string, stream=2 StreamInfo",
    "Result": "result=1 int32",
}

METHODS = {
    "getControllerServerList": ("ServerRequest", "ServerResponse"),
    "createScope": ("ScopeInfo", "Status"),
    "deleteScope": ("ScopeInfo", "Status"),
    "listScopes": ("ScopesRequest", "ScopesResponse"),
    "checkScopeExists": ("ScopeInfo", "ExistsResponse"),
    "checkStreamExists": ("StreamInfo", "ExistsResponse"),
    "listStreamsInScope": ("StreamsInScopeRequest", "StreamsInScopeResponse"),
    "listStreamsInScopeForTag": ("StreamsInScopeWithTagRequest", "StreamsInScopeResponse"),
    "createStream": ("StreamConfig", "Status"),
    "updateStream": ("StreamConfig", "Status"),
    "truncateStream": ("StreamCut", "Status"),
    "sealStream": ("StreamInfo", "Status"),
    "deleteStream": ("StreamInfo", "Status"),
    "getStreamConfiguration": ("StreamInfo", "StreamConfig"),
    "getCurrentSegments": ("StreamInfo", "SegmentRanges"),
    "getEpochSegments": ("GetEpochSegmentsRequest", "SegmentRanges"),
    "getSegments": ("GetSegmentsRequest", "SegmentsAtTime"),
    "getSegmentsImmediatlyFollowing": ("SegmentId", "SuccessorResponse"),
    "getSegmentsImmediatelyFollowing": ("SegmentId", "SuccessorResponse"),
    "getURI": ("SegmentId", "NodeUri"),
    "isSegmentValid": ("SegmentId", "Validity"),
    "isStreamCutValid": ("StreamCut", "Validity"),
    "getDelegationToken": ("StreamInfo", "DelegationToken"),
    "scale": ("ScaleRequest", "ScaleResponse"),
    "checkScale": ("ScaleStatusRequest", "Status"),
    "createTransaction": ("CreateTxnRequest", "CreateTxnResponse"),
    "pingTransaction": ("PingTxnRequest", "Status"),
    "commitTransaction": ("TxnRequest", "Status"),
    "abortTransaction": ("TxnRequest", "Status"),
    "checkTransactionState": ("TxnRequest", "TxnState"),
    "noteTimestampFromWriter": ("TimestampFromWriter", "Result"),
    "removeWriter": ("RemoveWriterRequest", "Result"),
}
"""The methods that are served: request and reply. Others are unimplemented."""


class Code(IntEnum):
    """What most statuses have in common."""

    SUCCESS = 0
    FAILURE = 1


class Ping(IntEnum):
    OK = 0
    LEASE_TOO_LARGE = 1
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


class TransactionState(IntEnum):
    UNKNOWN = 0
    OPEN = 1
    COMMITTED = 3
    ABORTED = 5


class ScaleStatus(IntEnum):
    IN_PROGRESS = 0
    SUCCESS = 1
    INVALID_INPUT = 2


_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _Field.TYPE_STRING,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "double": _Field.TYPE_DOUBLE,
    "bool": _Field.TYPE_BOOL,
}
_PACKAGE = "penstock.pravega"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="penstock/controller.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(", ")):
            _add(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _add(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    """`name=number type`, with an asterisk before the type of a list."""
    assigned, kind = text.split(" ")
    name, number = assigned.split("=")
    label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    field = message.field.add(name=name, number=int(number), label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


CLASSES = _classes()
"""By name."""
