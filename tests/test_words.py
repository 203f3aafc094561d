"""The word list of the project: nothing it rejects is in the tree, and it rejects what it lists."""

import pytest

from studies.words import ROOT, check, files


def test_no_file_uses_a_rejected_word():
    names = files()
    assert len(names) > 500
    assert [str(one) for name in names for one in check(name, (ROOT / name).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("name", "text", "line", "word"),
    [
        ("docs/page.md", "One line.\n\nNobody is scheduled.\n", 3, "Nobody"),
        ("docs/page.md", "The same colour for all.\n", 1, "colour"),
        ("src/a.py", '"""What stands beside it."""\n', 1, "stands beside"),
        ("src/a.py", "x = 1  # worked out by hand\n", 1, None),
        ("src/a.py", "x = 1  # made by hand\n", 1, "by hand"),
        ("src/a.py", 'raise ValueError(f"{x} is not a whole number")\n', 1, "whole number"),
        ("docs/page.md", "```\nkfl run nobody\n```\nThe option `--nobody`.\n", 1, None),
        ("src/a.py", 'nobody = "nobody"\n', 1, None),
    ],
)
def test_words_are_found_in_prose_and_not_in_code(name, text, line, word):
    found = check(name, text)
    assert [(one.line, one.word) for one in found if one.word == word] == ([(line, word)] if word else [])
    assert word or not found
