"""The server of a fleet: one round with real devices, and its accounts."""
