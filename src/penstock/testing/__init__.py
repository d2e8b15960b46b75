"""For tests of what others build on Penstock. Nothing here is imported by Penstock itself; some of it needs pytest."""
