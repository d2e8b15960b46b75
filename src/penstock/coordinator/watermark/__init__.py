"""The watermark of a cut, folded from the heads of records."""
