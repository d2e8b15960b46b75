"""What every part shares: errors, types, limits, the clock."""
