"""What a fleet script ran on, for the head of its log."""

import os
from importlib.metadata import version

from kfl.runfolder import describe_environment


def machine() -> str:
    """Versions, cores and load."""
    facts = describe_environment()
    load = os.getloadavg()[0]
    return (
        f"kfl {facts['kfl']}, flwr {version('flwr')}, Python {facts['python']}, torch {facts['packages']['torch']}, "
        f"{facts['cores']} cores of {facts['processor']}, load {load:.1f} at the start, {facts['started'][:10]}"
    )
