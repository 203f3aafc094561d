"""Plots made of characters: every point where it belongs, legible in 80 columns and in ASCII."""

import io

import pytest

from kfl.cli.terminal_plot import LABEL_WIDTH, MARKS, PlotLine, plot
from kfl.core.terminal import tell


def field(lines):
    """The characters between the axes, row by row."""
    rows = [line for line in lines if "│" in line or "┤" in line]
    start = max(rows[0].find("┤"), rows[0].find("│")) + 1
    columns = len(next(line for line in lines if "└" in line)) - start
    return [line[start:].ljust(columns)[:columns] for line in rows]


def test_points_are_where_the_numbers_say():
    rows = field(plot([PlotLine("a", [0, 5, 10], [0, 50, 100])], "J", "%", 80, 11))
    assert len(rows) == 11
    width = len(rows[0])
    assert (rows[10][0], rows[5][(width - 1) // 2], rows[0][width - 1]) == (MARKS[0],) * 3
    assert sum(row.count(MARKS[0]) for row in rows) == 3
    assert all("·" in row for row in rows[1:10] if MARKS[0] not in row)  # joined by dots, without a gap


def test_every_line_has_a_mark_of_its_own_and_its_name_even_where_all_end_together():
    lines = plot([PlotLine(f"line {k}", [0, 1], [k, 7]) for k in range(6)], "J", "%", 80, 8)
    shown = "\n".join(lines)
    assert all(f"{MARKS[k]} line {k}" in shown for k in range(6))
    assert max(map(len, lines)) <= 80


def test_where_points_fall_together_the_first_line_is_seen():
    rows = field(plot([PlotLine("first", [1], [1]), PlotLine("second", [1, 0], [1, 0])], "J", "%", 60, 5))
    assert sum(row.count(MARKS[0]) for row in rows) == 1


@pytest.mark.parametrize(
    "lines",
    [
        [PlotLine("one point", [2.0], [0.1])],
        [PlotLine("nothing spent", [0.0], [10.0])],
        [PlotLine("level", [1, 2, 3], [5, 5, 5]), PlotLine("empty", [], [])],
        [PlotLine("huge", [1e-9, 2e-9], [-3.0, 1e6])],
        [PlotLine(f"a name that is much longer than {LABEL_WIDTH} characters", [0, 1], [0, 1])],
    ],
    ids=["one point", "nothing spent", "level", "huge", "long name"],
)
def test_no_numbers_break_the_plot(lines):
    drawn = plot(lines, "J", "%", 80, 10)
    assert drawn
    assert max(map(len, drawn[:-1])) <= 80
    assert sum(row.count(MARKS[0]) for row in field(drawn)) >= 1


def test_nothing_to_draw_is_nothing():
    assert plot([], "J", "%") == plot([PlotLine("empty", [], [])], "J", "%") == []


def test_a_terminal_without_unicode_gets_ascii():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    tell(*plot([PlotLine(str(k), [0, 1], [-k, k]) for k in range(len(MARKS))], "µJ", "±", 80, 12), file=stream)
    tell(MARKS, "é", file=stream, flush=True)
    shown = stream.buffer.getvalue().decode()
    *drawn, marks, other = shown.splitlines()
    assert other == "\\xe9"
    assert "\\" not in "\n".join(drawn)
    assert len(set(marks)) == len(MARKS)  # still told apart
