"""JSON read by Spark in one pass, and refused unless all of a text is one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_CORRUPT = "__corrupt"


def one_document(text: Column, fields: StructType, options: Mapping[str, str], *, fail: bool = False) -> Column:
    """A struct with the fields, and a last one that means nothing. Null unless the text is one JSON object with fields
    of these types, and nothing else; a field that is missing is null. `fail`: text that is no JSON ends the query.

    Spark's parser stops behind the first document, and does not tell where. So the text is put into a list, before an
    object whose name nobody can guess: if that is the second and last of the list, all before it was one document.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    end = uuid4().hex
    listed = StructField(end, ArrayType(StructType([*fields.fields, StructField(end, StringType())])))
    opening, closing = functions.lit(f'{{"{end}":['), functions.lit(f',{{"{end}":""}}]}}')
    mode = {"mode": "FAILFAST" if fail else "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    whole = StructType([listed] if fail else [listed, StructField(_CORRUPT, StringType())])
    found = functions.from_json(functions.concat(opening, text, closing), whole, {**options, **mode})
    documents = found[end]
    is_one = (functions.size(documents) == 2) & documents[1][end].isNotNull() & functions.is_valid_utf8(text)
    is_one = is_one if fail else is_one & found[_CORRUPT].isNull()
    return functions.when(is_one, documents[0])
