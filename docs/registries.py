"""A line `<!-- every: package.REGISTRY -->` in a page becomes a reference entry for each thing registered there."""

import importlib
import re
from typing import Any

LINE = re.compile(r"^<!-- every: ([\w.]+)\.(\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return LINE.sub(lambda found: _entries(found[1], found[2]), markdown)


def _entries(package: str, registry: str) -> str:
    """By the public names, so that links to them lead somewhere."""
    home = importlib.import_module(package)
    things = getattr(home, registry).values()
    return "\n".join(
        f"::: {package if getattr(home, thing.__name__, None) is thing else thing.__module__}.{thing.__qualname__}"
        for thing in things
    )
