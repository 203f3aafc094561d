"""Examples in docstrings as code: without this, the site shows lines that begin with >>> as quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^( *)>>> .*(?:\n\1\S.*)*")


class Doctests(griffe.Extension):
    """Puts a fence around every doctest that has none."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        docstring = obj.docstring
        if docstring is not None and ">>> " in docstring.value and "```" not in docstring.value:
            docstring.value = EXAMPLE.sub(fenced, docstring.value)


def fenced(found: re.Match[str]) -> str:
    """An example, from its first >>> to the next empty line."""
    indent = found[1]
    return f"{indent}```pycon\n{found[0]}\n{indent}```"
