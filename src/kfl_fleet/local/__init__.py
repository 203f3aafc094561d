"""Processes of a fleet on this machine."""
