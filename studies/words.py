"""The words of the project: what the word list rejects, and how long the texts are.

    python -m studies.words               # every rejected word, with its place and its successors; exits with 1 if any
    python -m studies.words --count       # words of each part, as a table
    python -m studies.words --count REV   # the same at a revision, next to now

`studies/words.toml` is the word list. Checked are the prose of Markdown pages (not code), docstrings, comments and
strings of Python files, and pages, templates and notebooks as they are. A line that ends in `words: ok` is left alone.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LISTED = Path(__file__).with_suffix(".toml")
KINDS = (".md", ".py", ".html", ".j2", ".js", ".css", ".toml", ".in", ".yml", ".ipynb", ".cff")
SKIPPED = re.compile(r"^docs/results/|plotly|^studies/words\.|^tests/test_words\.py$|^constraints\.txt$|\.min\.js$")
ALLOWED = "words: ok"
CODE = re.compile(
    r"^( *)(```+|~~~+).*?^\1\2|`[^`\n]+`|^ *>>> [^\n]*$|<!--.*?-->|\]\([^)\s]*\)|https?://\S+", re.DOTALL | re.MULTILINE
)
COMMENT = re.compile(r"(?:^|\s)#:? (.*)$")


class Finding(NamedTuple):
    """A rejected word."""

    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: “{self.word}”: {self.instead}"


@cache
def rules() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return the word list as one pattern, and what to write in place of each of its groups."""
    tables = tomllib.loads(LISTED.read_text(encoding="utf-8")).values()
    pairs = [pair for table in tables for pair in table.items()]
    pattern = "|".join(f"(?P<g{number}>{key})" for number, (key, _) in enumerate(pairs))
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), {f"g{n}": instead for n, (_, instead) in enumerate(pairs)}


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file as pairs of its first line and its text."""
    if name.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
                yield node.lineno, CODE.sub(_blank, node.value)
        for number, line in enumerate(text.splitlines(), 1):
            if comment := COMMENT.search(line):
                yield number, CODE.sub(_blank, comment[1])
    else:
        yield 1, CODE.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    """Keep the line breaks of what is left out, so that line numbers stay right."""
    return " " + "\n" * found[0].count("\n")


def check(name: str, text: str) -> list[Finding]:
    """Return what the word list rejects in one file."""
    lines, found = text.splitlines(), set()
    pattern, instead = rules()
    for first, part in prose(name, text):
        for match in pattern.finditer(part):
            number = min(first + part.count("\n", 0, match.start()), len(lines))
            constant = match[0].isupper() and len(match[0]) > 1  # NOBODY is a name in the code
            if not constant and ALLOWED not in lines[number - 1]:
                found.add(Finding(name, number, match[0], instead[str(match.lastgroup)]))
    return sorted(found)


def files(folders: tuple[str, ...] = ()) -> list[str]:
    """Return the checked files that Git tracks, below `folders` if given."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if name.endswith(KINDS) and not SKIPPED.search(name)]


def count(texts: dict[str, str]) -> Counter[str]:
    """Return the number of words of prose in each part of the project."""
    words: Counter[str] = Counter()
    for name, text in texts.items():
        part = name if "/" not in name else "/".join(name.split("/")[: 2 if name.startswith("src/") else 1])
        if name.endswith((".md", ".py", ".ipynb")):
            words[part] += sum(len(piece.split()) for _, piece in prose(name, text))
    return words


def at(revision: str) -> dict[str, str]:
    """Return the checked files of a revision."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {
            entry.name: handle.read().decode()
            for entry in archive
            if entry.name.endswith(KINDS) and not SKIPPED.search(entry.name) and (handle := archive.extractfile(entry))
        }


def main() -> int:
    """Check the words or count them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", nargs="?", const="", metavar="REV", help="count words; with REV, then and now")
    parser.add_argument("folders", nargs="*", help="files or folders to check (default: all)")
    arguments = parser.parse_args()
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in files(tuple(arguments.folders))}
    if arguments.count is not None:
        now, then = count(texts), count(at(arguments.count)) if arguments.count else Counter()
        for part in sorted(now | then):
            print(f"{part:24}" + (f"{then[part]:9,}" if arguments.count else "") + f"{now[part]:9,}")
        return 0
    found = [finding for name, text in texts.items() for finding in check(name, text)]
    print("\n".join(map(str, found)) or f"{len(texts)} files: nothing that the word list rejects.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
