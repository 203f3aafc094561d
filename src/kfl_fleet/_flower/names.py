"""Flower's names, imported in one place: with a sentence where it is missing, and without the warnings of its parts."""

from __future__ import annotations

import warnings

from kfl.core.errors import MissingExtraError
from kfl.core.telemetry import hush

hush()  # Flower looks when it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer, which Flower pins, uses a deprecated part of click
    try:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.common.constant import ErrorCode
        from flwr.serverapp import Grid, ServerApp
    except ImportError as problem:
        raise MissingExtraError("flwr", "fleet", "A fleet of real devices") from problem

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
