"""Studies of a fleet of real processes: a harness of faults, checks and machines, and what is asked with it."""
