"""Where a file came from: traced along what was recorded, written down for others, and repeated."""
