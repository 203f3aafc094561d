"""HTML of the parts of a page. Every text is escaped here; nothing else puts text into HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kfl.report.chart import Chart, Table, ink, stroke
from kfl.report.words import text


def chart_html(chart: Chart) -> str:
    """A chart with its switch, its slider, its sentence, and its table for those who cannot see it."""
    kind = " wide" * chart.wide + " tall" * chart.tall
    name = text(chart.name)
    return (
        f'<figure class="chart{kind}" id="{name}">'
        f'<div class="chart-head"><h3>{text(chart.title)}</h3>{_switch(chart)}</div>'
        f'<div class="plot" id="{name}-plot" data-figure="{name}" role="img" aria-label="{text(chart.summary)}"></div>'
        f"{_player(chart)}"
        f"<figcaption>{text(chart.summary)}</figcaption>"
        f"{_details(chart)}</figure>"
    )


def _switch(chart: Chart) -> str:
    if len(chart.views) < 2:
        return ""
    name = text(f"{chart.name}-view")
    options = "".join(
        f'<label><input type="radio" name="{name}" id="{name}-{index}" value="{text(label)}"'
        f"{' checked' if index == 0 else ''}><span>{text(label)}</span></label>"
        for index, label in enumerate(chart.views)
    )
    return f'<fieldset class="switch"><legend class="unseen">{text(chart.switch)}</legend>{options}</fieldset>'


def _player(chart: Chart) -> str:
    if chart.frames is None:
        return ""
    labels, name = chart.frames["labels"], text(chart.name)
    last = len(labels) - 1
    return (
        f'<div class="player" data-player="{name}"><button type="button" class="play" id="{name}-play" '
        f'aria-label="Play over the rounds">Play</button>'
        f'<input type="range" id="{name}-slider" min="0" max="{last}" value="{last}" step="1" '
        f'aria-label="{text(chart.title)}: round" aria-valuetext="{text(labels[last])}">'
        f'<output for="{name}-slider">{text(labels[last])}</output></div>'
    )


def _details(chart: Chart) -> str:
    if chart.table is None:
        return ""
    summary = f'<summary>Table<span class="unseen"> of {text(chart.title)}</span></summary>'
    return f'<details id="{text(chart.name)}-table">{summary}{table_html(chart.table, chart.title)}</details>'


def table_html(shown: Table, caption: str, *, seen: bool = False) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in shown.columns)
    body = "".join(_row(row, shown.groups[index] if shown.groups else None) for index, row in enumerate(shown.rows))
    note = f'<p class="note">{text(shown.note)}</p>' if shown.note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}, table"><table>'
        f"<caption{'' if seen else ' class=unseen'}>{text(caption)}</caption>"
        f'<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div><p class="cue" hidden>Scroll the table '
        f"sideways for more columns →</p>{note}"
    )


def _row(row: Sequence[str], group: int | None) -> str:
    first, *rest = row
    mark, swatch = ("", "") if group is None else (f' data-group="{group}"', swatch_html(group))
    cells = "".join(f"<td>{text(cell)}</td>" for cell in rest)
    return f'<tr{mark}><th scope="row">{swatch}{text(first)}</th>{cells}</tr>'


_DASH_LENGTHS = {"solid": "", "dash": "9 5", "dot": "2.5 3.5", "dashdot": "9 4 2.5 4"}


def swatch_html(group: int) -> str:
    """A piece of a group's line, in its colour and dashes."""
    lengths = _DASH_LENGTHS[stroke(group)["dash"]]
    return (
        f'<svg class="swatch" width="34" height="10" aria-hidden="true"><line x1="1" y1="5" x2="33" y2="5" '
        f'class="{ink(group)[1:]}" stroke-dasharray="{lengths}"/></svg>'
    )


WINDOWS = (3, 5, 11, 21)


def controls_html(groups: Sequence[tuple[int, str]]) -> str:
    """What applies to all charts of the page: which groups are shown, and over how many points lines are smoothed."""
    boxes = "".join(
        f'<label data-swatch="{index}"><input type="checkbox" id="show-{index}" value="{index}" checked>'
        f"{swatch_html(index)}<span>{text(name)}</span></label>"
        for index, name in groups
    )
    shown = f'<fieldset id="shown"><legend>Show</legend>{boxes}</fieldset>' if len(groups) > 1 else ""
    options = "".join(f'<option value="{count}">over {count} points</option>' for count in WINDOWS)
    return (
        f'<form class="everywhere" id="everywhere" aria-label="What the charts show">{shown}'
        f'<label class="chooser" for="smoothing">Smoothing <select id="smoothing"><option value="1">none</option>'
        f"{options}</select></label></form>"
    )


def cards_html(cards: Sequence[tuple[str, str, str]]) -> str:
    """The numbers on top: what, how much, and what to hold it against."""
    inner = "".join(
        f'<div class="card"><dt>{text(label)}</dt>'
        f"<dd><strong>{text(value)}</strong><span>{text(more)}</span></dd></div>"
        for label, value, more in cards
    )
    return f'<dl class="cards">{inner}</dl>'


def facts_html(facts: Mapping[str, str]) -> str:
    """Names and values."""
    inner = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{inner}</dl>'


def code_html(code: str, label: str, name: str) -> str:
    """Text to copy."""
    return (
        f'<div class="code"><button type="button" class="copy" data-copy="{text(name)}">Copy</button>'
        f'<pre id="{text(name)}" tabindex="0" aria-label="{text(label)}"><code>{text(code, None)}</code></pre></div>'
    )


def section_html(name: str, title: str, inner: str, intro: str = "") -> str:
    """A part of the page with a heading."""
    intro_html = f'<p class="intro">{text(intro)}</p>' if intro else ""
    return (
        f'<section id="{text(name)}" aria-labelledby="{text(name)}-title">'
        f'<h2 id="{text(name)}-title">{text(title)}</h2>{intro_html}{inner}</section>'
    )


def absent_html(sentence: str) -> str:
    """Why something is not there."""
    return f'<p class="absent">{text(sentence)}</p>'
