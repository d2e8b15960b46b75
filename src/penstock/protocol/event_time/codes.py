"""What the scanners find of a field. The kernels contain copies: after a change, touch their files."""

MISSING = 0
"""The event is valid, and has no such field."""
NULL = 1
WRONG_TYPE = 2
"""A truth, a list, a map; a number where the format is text."""
MALFORMED = 3
"""The event is not valid in its codec."""
TOO_DEEP = 4
NOT_A_TIME = 5
"""A text that does not have the format."""
OUT_OF_RANGE = 6
"""Outside the years 1 to 9999."""
NO_FIELDS = 7
"""The event's codec has no fields."""

TIME = 16
"""A time in microseconds, in `starts`. Everything below is a problem."""
TEXT = 17
"""The bytes from `starts` to `ends`."""
ESCAPED = 18
"""As TEXT, with escapes in it."""
NUMBER = 19
"""A number in decimal, from `starts` to `ends`."""
INTEGER = 20
"""In `starts`."""
FLOAT = 21
"""Its 64 bits, in `starts`."""
DEPTH_MAX = 64
"""Nesting of a JSON event: a bit for each in a word, and far deeper than documents are."""

TEXT_MAX = 256
"""Characters of a time: longer texts are not times, so that what is remembered of them is bounded."""

TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999, which Spark and Python can represent."""
