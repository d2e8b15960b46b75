"""For tests of what others build on Penstock. Penstock itself imports nothing from here; some modules need pytest."""
