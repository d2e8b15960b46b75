"""Dead letters in frames: events that could not be processed, kept with their bytes and the reason."""
