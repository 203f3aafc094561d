"""No telemetry by surprise: what the tools next to kfl would send home by themselves is off, unless a user turns it on.

`hush` is called wherever such a tool is imported or started. It touches no variable that is already set: a user who
wants to help a tool's makers sets its variable.

What a user asks a tool for is another thing: `--track wandb` sends the run to W&B's server, with the names of this
machine and user, as W&B does; CodeCarbon is used as its offline tracker, which asks no service where it is.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Silenced:
    """One thing that a tool would send by itself, and the variable that keeps it from doing so."""

    tool: str
    variable: str
    value: str
    """What `hush` sets it to."""
    asked_for: str
    """What a user sets it to who wants it sent."""
    sends: str
    """What it would send, to whom, and when."""


SILENCED = (
    Silenced(
        "Flower",
        "FLWR_TELEMETRY_ENABLED",
        "0",
        "1",
        "each start and end of its programs, versions, system, processor count, an identifier kept in its home: "
        "telemetry.flower.ai",
    ),
    Silenced(
        "Flower",
        "FLWR_DISABLE_UPDATE_CHECK",
        "1",
        "0",
        "its version, Python's and the system's, to ask for a newer one: flower.ai",
    ),
    Silenced(
        "Ray",
        "RAY_USAGE_STATS_ENABLED",
        "0",
        "1",
        "versions, the cluster's size and hardware, libraries in use, every hour: usage-stats.ray.io",
    ),
    Silenced(
        "W&B",
        "WANDB_ERROR_REPORTING",
        "false",
        "true",
        "errors inside its own library and background process: its makers",
    ),
    Silenced(
        "MLflow",
        "MLFLOW_DISABLE_TELEMETRY",
        "true",
        "false",
        "which of its functions are called and how long they take, identifiers, versions, the system: its makers",
    ),
)
"""Everything that a tool kfl starts or imports would send without being asked."""


def hush(environment: MutableMapping[str, str] = os.environ) -> MutableMapping[str, str]:
    """Turn all of it off in an environment, this process's by default, where the user has not said otherwise.

    >>> hush({"RAY_USAGE_STATS_ENABLED": "1"})["RAY_USAGE_STATS_ENABLED"]
    '1'
    >>> hush({})["MLFLOW_DISABLE_TELEMETRY"]
    'true'
    """
    for each in SILENCED:
        environment.setdefault(each.variable, each.value)
    return environment
