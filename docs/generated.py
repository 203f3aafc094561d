"""Parts of pages that come from the code.

    python docs/generated.py    # write the tables anew into the pages, which a test compares

A table stands in its page, between its line and `<!-- end -->`, so that it is read on GitHub too. Entries of the
reference are made when MkDocs calls `on_page_markdown`. A line of its own in a page stands for

    <!-- every: package.REGISTRY -->   a reference entry for each thing registered there
    <!-- rest: package -->             one for each name the package exports and the page does not list yet
    <!-- exports: package -->          a table of all it exports: name, first sentence, link to the entry
    <!-- problem: cell -->             the table of a problem file's fields (`cell` or `device`)
    <!-- codes: module.MAPPING -->     a table of codes and what each means
    <!-- presets: names -->            a table of the ready-made cells, for a page next to `reference/`
    <!-- presets: sources -->          every ready-made cell, with the source of each figure
    <!-- idle -->                      options of `kfl run` that act only with certain others
    <!-- gaps -->                      what the paper's proofs leave open
    <!-- lines: FILE 3 31 -->          these lines of a file in docs/results
    <!-- fleet: metrics -->            every metric of a fleet's server, as it exports it
    <!-- fleet: alerts -->             every alert of a new project
    <!-- fleet: events -->             every event in the logs
    <!-- fleet: settings one two -->   these fields of `[fleet]`, or all of them
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent
TABLES = "problem|codes|presets|idle|gaps|fleet|lines"
WHAT = r"(?:: ([\w./ -]+))? -->"
LINE = re.compile(rf"^<!-- (every|rest|exports|{TABLES}){WHAT}$", re.MULTILINE)
WRITTEN = re.compile(rf"^(<!-- ({TABLES}){WHAT})\n(?:\n(?:.*?\n)??<!-- end -->\n|)", re.MULTILINE | re.DOTALL)
"""A table with its line, whether it has been written yet or not."""
ENTRY = re.compile(r"^::: ([\w.]+)$(?!\n    options: {members: false)", re.MULTILINE)
"""Of a module without its members only the docstring is shown."""
UNITS = {
    "dbm_per_hz": "dBm/Hz",
    "dbm": "dBm",
    "db": "dB",
    "hz": "Hz",
    "w": "W",
    "j": "J",
    "round": "J",
    "s": "s",
    "m": "m",
}
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with the entries of the reference, and with tables that are not written into it."""
    markdown = re.sub(
        rf"^<!-- (?:{TABLES})[^\n]* -->\n\n(.*?)<!-- end -->$", r"\1", markdown, flags=re.DOTALL | re.MULTILINE
    )
    markdown = LINE.sub(lambda found: found[0] if found[1] == "rest" else _part(found[1], found[2]), markdown)
    return LINE.sub(lambda found: _rest(found[2], markdown), markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The page, with a name for the theme's search dialog, which screen readers need."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def written(markdown: str) -> str:
    """The page with all its tables as they are made today."""
    return WRITTEN.sub(lambda found: f"{found[1]}\n\n{_part(found[2], found[3])}\n\n<!-- end -->\n", markdown)


def pages() -> list[Path]:
    """The pages that may have tables."""
    return sorted([*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")])


def _part(kind: str, what: str) -> str:
    if kind == "every":
        return _every(*what.rsplit(".", 1))
    if kind == "exports":
        return _exports(what)
    if kind == "codes":
        return _codes(*what.rsplit(".", 1))
    if kind == "problem":
        return _problem_fields(what)
    if kind == "lines":
        file, first, last = what.split()
        return "\n".join((DOCS / "results" / file).read_text(encoding="utf-8").splitlines()[int(first) - 1 : int(last)])
    if kind == "gaps":
        return _gaps()
    if kind == "idle":
        return _idle()
    if kind == "fleet":
        return _fleet(*what.split())
    return _preset_sources() if what == "sources" else _preset_names()


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _idle() -> str:
    """A row for each option that a choice can make idle: with which words of that choice it is, and what it needs."""
    from kfl.experiment.idle import COUNTED, NEEDS, words_of

    rows = []
    for name, needs in NEEDS.items():
        idle = [f"{need.choice} {word}" for need in needs for word in words_of(need.choice) if not need.acts(word)]
        rows.append((f"`--{name.replace('_', '-')}`", ", ".join(idle), "; ".join(need.right for need in needs)))
    rows += [(f"`--{name.replace('_', '-')}`", "more than --devices", "at most --devices") for name in COUNTED]
    return _table(("option", "does nothing with", "acts with"), rows)


def _gaps() -> str:
    sys.path.append(str(Path(__file__).parents[1]))  # `reproduction` is not installed, and MkDocs restores the path
    gaps = importlib.import_module("reproduction.theory.gaps").GAPS
    rows = ((f"{gap.about}, {gap.step}", gap.says, gap.shown) for gap in gaps)
    return _table(("where", "what", "shown in tests"), rows)


def _every(package: str, registry: str) -> str:
    """By the public names, so that links to them lead somewhere."""
    home = importlib.import_module(package)
    things = getattr(home, registry).values()
    return "\n".join(
        f"::: {package if getattr(home, thing.__name__, None) is thing else thing.__module__}.{thing.__qualname__}"
        for thing in things
    )


def _rest(package: str, page: str) -> str:
    """What another package defines has its entry on the page of that package, unless it is private."""
    home, listed = importlib.import_module(package), set(ENTRY.findall(page))
    lines = []
    for name in home.__all__:
        thing = getattr(home, name)
        module = _module(thing, "")
        passed_on = module and not f"{module}.".startswith((f"{package}.", "kfl._"))
        if not passed_on and not {f"{package}.{name}", f"{module}.{name}", module} & listed:
            lines.append(f"::: {package}.{name}")
            lines += [] if module else ["    options: {show_attribute_values: false}"]  # tables and registries are long
    return "\n".join(lines)


def _exports(package: str) -> str:
    home = importlib.import_module(package)
    rows = []
    for name in sorted(home.__all__, key=str.lower):
        thing = getattr(home, name)
        module = _module(thing, "")
        if module:
            public = ".".join(module.split(".")[:2])  # the package, where it exports the name
            exported = public != "kfl.core" and hasattr(importlib.import_module(public), name)
            address = f"{public if exported else module}.{name}"
            rows.append((f"[`{package}.{name}`][{address}]", (inspect.getdoc(thing) or "").partition("\n")[0]))
    return _table(("name", ""), rows)


def _module(thing: Any, otherwise: str) -> str:
    """Where a class or function is defined; constants do not know."""
    known = inspect.isclass(thing) or inspect.isroutine(thing)
    return str(thing.__module__) if known else otherwise


def _codes(module: str, mapping: str) -> str:
    meanings = getattr(importlib.import_module(module), mapping)
    return _table(("code", ""), ((f"`{code}`", words) for code, words in meanings.items()))


def _problem_fields(which: str) -> str:
    """The fields of a problem file, as reading it checks them."""
    known = importlib.import_module("kfl.scheduling.problem_schema")
    listed = (known.CELL_FIELDS if which == "cell" else known.DEVICE_FIELDS).values()
    rows = ((f"`{field.name}`", field.meaning, field.right, field.otherwise) for field in listed)
    return _table(("field", "meaning", "must be", "if left out"), rows)


def _preset_names() -> str:
    presets = importlib.import_module("kfl.wireless.presets").PRESET_SOURCES.items()
    rows = ((f"[`{name}`](reference/wireless.md#{name})", preset.about, _model(preset)) for name, preset in presets)
    return _table(("`--radio`", "what it is", "energy"), rows)


def _model(preset: Any) -> str:
    free_clock = "printed radio, free clock" if preset.cell.circuit_power_w == 0 else "whole device"
    return "as printed" if preset.cell.printed_model else free_clock


def _preset_sources() -> str:
    """One section per ready-made cell; fields in the order of `CellConfig`."""
    wireless = importlib.import_module("kfl.wireless")
    order = list(wireless.CellConfig.__dataclass_fields__)
    lines = []
    for name, preset in wireless.presets.PRESET_SOURCES.items():
        about = f"{preset.about[0].upper()}{preset.about[1:]}"
        lines += [f"### {name}", "", f"{about}. Energy: {_model(preset)}.", ""]
        figures = sorted(preset.figures.items(), key=lambda item: order.index(item[0]))
        rows = ((f"`{field}`", _value(field, one.value), one.source, one.remark) for field, one in figures)
        lines += [_table(("field", "value", "source", "remark"), rows), ""]
    return "\n".join(lines)


def _value(field: str, value: float | tuple[float, ...]) -> str:
    """A figure with the unit that its field's name carries, without rounding.

    >>> _value("bandwidth_hz", 180e3), _value("cpu_frequencies_hz", (1.4784e9, 1.728e9)), _value("min_power_dbm", -40)
    ('180 kHz', '1.4784, 1.728 GHz', '−40 dBm')
    """
    unit = next((UNITS[end] for end in UNITS if field.endswith(f"_{end}")), "")
    values = value if isinstance(value, tuple) else (value,)
    scale, prefix = next((pair for pair in PREFIXES if unit == "Hz" and max(values) >= pair[0]), (1.0, ""))
    text = ", ".join(f"{one / scale:.6g}" for one in values).replace("-", "−")
    mantissa, _, exponent = text.partition("e")
    if exponent:
        text = f"{mantissa}·10{exponent.translate(str.maketrans('−0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return f"{text} {prefix}{unit}".rstrip()


def _fleet(kind: str, *names: str) -> str:
    if kind == "settings":
        return _table(("`[fleet]`", "default", ""), _settings(names))
    if kind == "metrics":
        return _table(("metric", "type", ""), metrics())
    if kind == "alerts":
        return _table(("alert", "severity", "fires when", "says"), alerts())
    return _table(("event", ""), _events())


def metrics() -> Iterator[tuple[str, str, str]]:
    """Name, type and description of all that a server exports when uploads have noise, so that nothing is left out."""
    from kfl.algorithms import Kfl
    from kfl.experiment import Experiment
    from kfl_fleet import FleetSettings, ServerConfig
    from kfl_fleet.server.metrics import Metrics

    experiment = replace(Experiment(), algorithm=Kfl(clip_norm=1.0, noise_multiplier=1.0))
    config = ServerConfig(experiment, FleetSettings(privacy_alert_epsilon=1.0))
    for family in Metrics(config).registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield _whole(name), family.type, family.documentation


def alerts() -> Iterator[tuple[str, str, str, str]]:
    """Name, severity, condition and message; $value and labels stay as they are."""
    text = (files("kfl_fleet.project") / "template" / "watch" / "alerts.yml.in").read_text(encoding="utf-8")
    for group in yaml.safe_load(text.replace("@@name@@", "fleet"))["groups"]:
        for rule in group["rules"]:
            lasting = f", for {rule['for']}" if "for" in rule else ""
            says = re.sub(r"\{\{ \$(?:labels\.)?(\w+).*?\}\}", r"*\1*", rule["annotations"]["summary"])
            yield _whole(rule["alert"]), rule["labels"]["severity"], f"`{rule['expr']}`{lasting}", says


def _events() -> Iterator[tuple[str, str]]:
    from kfl_fleet.logs import EVENTS

    for event, meaning in EVENTS.items():
        yield _whole(event), meaning


def _settings(names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    from kfl_fleet import FleetSettings

    meanings = _field_docstrings(FleetSettings)
    defaults = {field.name: field.default for field in fields(FleetSettings)}
    for name in names or defaults:
        yield _whole(name), _default(defaults[name]), meanings[name]


def _whole(name: str) -> str:
    """A name that is never broken in two: its column gets the room it needs."""
    return f'<code style="white-space: nowrap">{name}</code>'


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value:.3g}`" if isinstance(value, float) else f"`{value}`"


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string below each field of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


if __name__ == "__main__":
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.relative_to(DOCS.parent)} written")
