"""The parts of `studies.fleet_chaos`: what breaks a fleet, and what looks whether it held."""
