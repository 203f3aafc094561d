r"""Names are data: text from files, devices and peers, made harmless for each place that shows it.

A device's id, a class's folder or a dataset's path may hold anything: escape sequences that a terminal obeys, markup,
half a surrogate pair, a hundred thousand letters. There is one function for each place, and nothing shows a name
without it:

    for_terminal   a line of a terminal, and of a log as text
    for_label      a label of a metric
    for_html       a page, and Plotly's labels, which are HTML too
    for_markdown   a cell or a line of Markdown
    for_plot       a text of Matplotlib, which else reads $…$ as mathematics
    for_csv        a cell of a CSV file, which spreadsheets may take for a formula
    for_json       JSON as text, the same value in characters that can be shown
    for_file_name  a part of a file's name

`kfl.core.text.scrub` does the same for whole messages of peers, whose paths are private. Letters of all
alphabets stay as they are, so two names that look alike may differ.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import blake2b

LONGEST_LINE = 4000
"""Characters of a line on a terminal or in a log; of a longer one the middle is left out."""
LONGEST_NAME = 48
"""Characters of a name in a table or a plot."""
LONGEST_FILE_NAME = 96
"""Characters of a name in a file's name: far below what file systems allow."""
HIDDEN = "·"
"""Stands for a character that cannot be shown."""
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_FORMULA = re.compile(r"'*(?![+-]?[0-9.]+$)[=+@\t\r\n-]")
"""How a cell begins that spreadsheets calculate; a plain number is none."""
_NOT_ASCII = re.compile(r"[^\n -~]")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_MARKDOWN = str.maketrans({"|": "&#124;", "<": "&lt;", "`": "&#96;"})


def visible(text: object, *, keep: str = "") -> str:
    r"""The text with a dot for every character that cannot be shown, except those in `keep`.

    Control characters, marks that turn the direction of writing, spaces without width and halves of surrogate pairs
    are all such. Spaces of other kinds become plain ones.

    >>> visible("a\x1b[31mb\u202ec\u00a0d\n")
    'a·b·c d·'
    """
    found = str(text)
    if found.isprintable():
        return found
    found = _SEQUENCE.sub(HIDDEN, found)
    return "".join(letter if letter.isprintable() or letter in keep else _stand_in(letter) for letter in found)


def _stand_in(letter: str) -> str:
    return " " if unicodedata.category(letter) == "Zs" else HIDDEN


def shortened(name: str, most: int = 48) -> str:
    """A name of at most `most` characters: the middle of a longer one is left out.

    >>> shortened("a" * 60, 11)
    'aaaaa…aaaaa'
    """
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def for_terminal(text: object, longest: int = LONGEST_LINE) -> str:
    r"""Text as one line that a terminal only shows.

    >>> for_terminal("a\x1b]0;owned\x07b"), for_terminal("x" * 90, 9)
    ('a·]0;owned·b', 'xxxx…xxxx')
    """
    return shortened(visible(_cut(text, longest)), longest)


def for_label(text: object, longest: int = LONGEST_NAME) -> str:
    """Text as the value of a metric's label."""
    return for_terminal(text, longest)


def for_html(text: object, longest: int | None = LONGEST_LINE) -> str:
    r"""Text as HTML that shows it and does nothing else; lines stay lines.

    >>> for_html("<b>&\x00")
    '&lt;b&gt;&amp;·'
    """
    found = visible(_cut(text, longest), keep="\n\t\N{NO-BREAK SPACE}")
    return html.escape(found if longest is None else shortened(found, longest), quote=True)


def for_markdown(text: object, longest: int = LONGEST_LINE) -> str:
    """Text as one line of Markdown: no cell, no code, no tag and no link begins in it.

    >>> for_markdown("a|b <i> [c](d)")
    'a&#124;b &lt;i> [c]&#40;d)'
    """
    return for_terminal(text, longest).translate(_MARKDOWN).replace("](", "]&#40;")


def markdown_table(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of a table given by column, the first column to the left and the others to the right.

    >>> markdown_table({"method": ["kfl"], "points": ["+1"]})
    ['| method | points |', '| --- | ---: |', '| kfl | +1 |']
    """
    rows = [list(cells), *zip(*cells.values(), strict=True)]
    head, *body = [f"| {' | '.join(map(for_markdown, row))} |" for row in rows]
    return [head, f"| --- |{' ---: |' * (len(cells) - 1)}", *body]


def html_table(cells: Mapping[str, Sequence[str]], title: str = "", notes: Sequence[str] = ()) -> str:
    """Return columns of equal length as an HTML table with a caption, for notebooks.

    >>> html_table({"a": ["<1>"], "b": ["2"]})
    '<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>&lt;1&gt;</td><td>2</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{for_html(name)}</th>" for name in cells)
    rows = zip(*cells.values(), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{for_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<caption>{for_html(title)}</caption>" if title else ""
    below = "".join(f"<p>{for_html(note)}</p>" for note in notes)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def fenced(text: object) -> list[str]:
    """The lines of a block of Markdown that shows a line of code; its fence is longer than any in the text.

    >>> fenced("kfl demo")
    ['```', 'kfl demo', '```']
    """
    line = for_terminal(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
    return [fence, line, fence]


def for_plot(text: object, longest: int = LONGEST_NAME) -> str:
    r"""Text for Matplotlib, whose dollars do not begin mathematics; a line of one still has an entry in a legend.

    >>> for_plot("$x$"), for_plot("_mine")
    ('\\$x\\$', '\u2009_mine')
    """
    found = for_terminal(text, longest).replace("$", r"\$")
    return f"\N{THIN SPACE}{found}" if found.startswith("_") else found


def for_csv(text: str) -> str:
    r"""Text as a cell of CSV that no spreadsheet takes for a formula: one that would be has an apostrophe before it.

    `from_csv` takes it away again. Half a surrogate pair, which no file can hold, becomes U+FFFD.

    >>> for_csv("=1+1"), for_csv("sensor-1"), for_csv("-1")
    ("'=1+1", 'sensor-1', '-1')
    """
    found = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return f"'{found}" if _FORMULA.match(found) else found


def from_csv(cell: str) -> str:
    """The text that `for_csv` wrote.

    >>> from_csv("'=1+1"), from_csv("'quoted'")
    ('=1+1', "'quoted'")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def for_json(text: str) -> str:
    r"""JSON as text, with an escape for every character that cannot be shown: the same value, harmless in a terminal.

    >>> for_json('{"id": "\u202ea"}')
    '{"id": "\\u202ea"}'
    """
    return _NOT_ASCII.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable() or letter == "\N{NO-BREAK SPACE}":
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def for_file_name(text: object, between: str = "-", longest: int = LONGEST_FILE_NAME) -> str:
    r"""Text as part of a file's name: letters, digits and . _ - only, no hidden file, no name that Windows keeps.

    One that had to be cut ends in a hash of the whole, so that two long names stay two.

    >>> for_file_name("../../etc/passwd"), for_file_name("mine: a/b"), for_file_name("nul.txt")
    ('etc-passwd', 'mine-a-b', '_nul.txt')
    """
    found = re.sub(r"[^A-Za-z0-9._-]+", between, str(text)).strip(".-") or "data"
    if len(found) > longest:
        whole = blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        found = f"{found[: longest - 9]}-{whole}"
    return f"_{found}" if _RESERVED.fullmatch(found) else found


def _cut(text: object, longest: int | None) -> str:
    """No more of a text than can ever be shown, from both of its ends: what follows takes time for each letter."""
    found = str(text)
    if longest is None or len(found) <= 4 * longest:
        return found
    return found[: 2 * longest] + found[-2 * longest :]
