"""Where the command line writes: lines in which names are only names (`kfl.core.names`).

`tell` prints sentences, `plain_console` makes a rich console for tables and bars. Nothing in the command line prints
by other means, so nothing from a file reaches a terminal as it is.
"""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

from kfl.core.names import for_json, for_terminal

if TYPE_CHECKING:
    from rich.console import Console

_ASCII = str.maketrans(
    {"●": "o", "■": "#", "▲": "^", "◆": "*", "○": "0", "□": "=", "△": "v", "◇": "+", "·": ".", "│": "|", "┤": "+"}
    | {"└": "+", "─": "-", "┬": "+", "±": "+/-", "−": "-", "–": "-", "µ": "u", "×": "x", "…": "..."}
)
"""What stands for our characters on a terminal that lacks them."""


def tell(*lines: object, file: IO[str] | None = None, end: str = "\n", flush: bool = False) -> None:
    r"""Print lines, one for each argument. A line break inside of one is shown as a dot: it is part of a name.

    >>> tell("The page is a\nb.html", "Done.")
    The page is a·b.html
    Done.
    """
    tell_exactly("\n".join(map(for_terminal, lines)) + end, file=file, flush=flush)


def tell_json(text: str) -> None:
    """Print JSON, with escapes for what a terminal should not see; programs read the same value."""
    tell_exactly(for_json(text) + "\n")


def tell_exactly(text: str, file: IO[str] | None = None, *, flush: bool = False) -> None:
    """Print text of our own, or text that was made harmless; on a stream without Unicode, in ASCII or escaped."""
    out = file or sys.stdout
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    out.write(text)
    if flush:
        out.flush()


def plain_console(**options: Any) -> Console:
    """A rich console that shows text as it is: no markup, no emoji codes, no control characters, no highlighting.

    >>> with (made := plain_console(width=40)).capture() as shown:
    ...     made.print("[bold]a[/] :smile: b" + chr(27) + "c")
    >>> shown.get()
    '[bold]a[/] :smile: b·c\\n'
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        """Text is made harmless where rich turns it into cells."""

        def render_str(self, text: str, **more: Any) -> Text:
            lines = text.split("\n")
            return super().render_str("\n".join(map(for_terminal, lines)), **{**more, "markup": False, "emoji": False})

    return PlainConsole(**{"highlight": False, "markup": False, "emoji": False, **options})
