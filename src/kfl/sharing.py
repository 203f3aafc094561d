"""Moved: methods next to twins that upload nothing are `kfl.compare(entries, twins=True)`, of `kfl.comparison`."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"kfl.sharing has no {name!r} any more: use kfl.compare(entries, twins=True), or kfl.comparison"
    )
