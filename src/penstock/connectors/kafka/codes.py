"""Codes of librdkafka's errors, and their texts. The library's own codes have names with an underscore."""

from confluent_kafka import KafkaError, KafkaException

ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
AUTHENTICATION = KafkaError._AUTHENTICATION  # noqa: SLF001
END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001
FATAL = KafkaError._FATAL  # noqa: SLF001
OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)


def error_of(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def text_of(exception: KafkaException) -> str:
    return error_of(exception).str()
