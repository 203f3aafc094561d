"""The lines of algorithms in plots: those of the published figures, and lines that follow from a name."""

from __future__ import annotations

import re

from kfl.algorithms import ALGORITHMS
from kfl.plots.style import Style, style_of


def test_every_algorithm_has_a_line_of_its_own():
    lines = {name: style_of(name) for name in ALGORITHMS}
    assert len({str(line) for line in lines.values()}) == len(ALGORITHMS)
    for line in lines.values():
        assert re.fullmatch("#[0-9a-f]{6}", line.color) and line.width > 0
        assert line.dashes == "-" or len(line.dashes[1]) % 2 == 0
    assert lines["kfl"] == Style("#0b3d91", "-", 2.4)
    assert lines["apfl"] == Style("#b2478c", (0, (4, 1, 1, 1, 1, 1)), 1.7)


def test_the_line_of_a_new_algorithm_follows_from_its_name_and_eight_colors_meet_four_dashes():
    found = [style_of(f"method-{number}") for number in range(400)]
    assert len({style.color for style in found}) == 8
    assert {style.dashes for style in found} == {"-", (0, (7, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5))}
    assert len(set(found)) == 32 and {style.width for style in found} == {1.7}
    # CRC-32 of "123456789" is 0xCBF43926 by definition: color 6 of 8, and 0xCBF43926 // 8 is 0 modulo 4.
    assert style_of("123456789") == Style("#4b4b8f", "-", 1.7)
    # What a file system may call an algorithm need not be text that can be encoded.
    assert style_of("\udcff").color
