"""The pure part: commands go in, the new state and effects come out."""
