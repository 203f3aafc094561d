"""One device of a fleet: a small process that talks to the server, and a warm one that trains."""
