"""Programs that measure and study the library itself, and whose results are written into the docs."""
