"""wireless."""
