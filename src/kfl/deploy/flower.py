"""Flower's names, imported in one place: with a sentence where it is missing, and without the warnings of its parts."""

from __future__ import annotations

import warnings
from functools import partial

from kfl.core.errors import MissingExtraError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer, which Flower pins, uses a deprecated part of click
    try:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.common.constant import ErrorCode
        from flwr.serverapp import Grid, ServerApp
        from flwr.supercore.inflatable.inflatable_utils import pull_objects
        from flwr.superlink.grid import http_grid
    except ImportError as problem:
        raise MissingExtraError("flwr", "flower", "A fleet of real devices") from problem

# An answer is announced before its last part is there. Flower then waits a second, and for a device that vanished
# meanwhile three minutes, whatever the deadline; a server that asks again at once and gives up soon needs neither.
vars(http_grid)["pull_objects"] = partial(pull_objects, initial_backoff=0.02, backoff_cap=0.2, max_time=10.0)

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "ErrorCode",
    "Grid",
    "Message",
    "RecordDict",
    "ServerApp",
]
