"""Studies of schedulers, budgets and devices: `python -m reproduction energy NAME`."""
