"""`file`: files are read, tailed, written in parts by two-phase commit, or appended to."""

from penstock.connectors.file.parts import CommittedPart, read_committed_parts

__all__ = ["CommittedPart", "read_committed_parts"]
