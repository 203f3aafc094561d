"""Parts of pages that come from the code: MkDocs calls `on_page_markdown` for each page.

A line of its own in a page becomes

    <!-- every: package.REGISTRY -->   a reference entry for each thing registered there
    <!-- rest: package -->             one for each name the package exports and the page does not list yet
    <!-- exports: package -->          a table of all it exports: name, first sentence, link to the entry
    <!-- problem: cell -->             the table of a problem file's fields (`cell` or `device`)
    <!-- codes: module.MAPPING -->     a table of codes and what each means
    <!-- presets: names -->            a table of the ready-made cells, for a page beside `reference/`
    <!-- presets: sources -->          every ready-made cell, with the source of each figure
    <!-- gaps -->                      what the paper's proofs leave open
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

LINE = re.compile(r"^<!-- (every|rest|exports|problem|codes|presets|gaps)(?:: ([\w.]+))? -->$", re.MULTILINE)
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
    """The page, with its generated parts filled in."""
    markdown = LINE.sub(lambda found: found[0] if found[1] == "rest" else _part(found[1], found[2]), markdown)
    return LINE.sub(lambda found: _rest(found[2], markdown), markdown)


def _part(kind: str, what: str) -> str:
    if kind == "every":
        return _every(*what.rsplit(".", 1))
    if kind == "exports":
        return _exports(what)
    if kind == "codes":
        return _codes(*what.rsplit(".", 1))
    if kind == "problem":
        return _problem_fields(what)
    if kind == "gaps":
        return _gaps()
    return _preset_sources() if what == "sources" else _preset_names()


def _gaps() -> str:
    sys.path.append(str(Path(__file__).parents[1]))  # `reproduction` is not installed, and MkDocs restores the path
    gaps = importlib.import_module("reproduction.theory").GAPS
    rows = [f"| {gap.about}, {gap.step} | {gap.says} | {gap.shown} |" for gap in gaps]
    return "\n".join(["| where | what | shown in tests |", "| --- | --- | --- |", *rows])


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
    rows = ["| name | |", "| --- | --- |"]
    for name in sorted(home.__all__, key=str.lower):
        thing = getattr(home, name)
        module = _module(thing, "")
        if module:
            public = ".".join(module.split(".")[:2])  # the package that exports it: kfl.core.errors is one of its own
            address = f"{module}.{name}" if public == "kfl.core" else f"{public}.{name}"
            rows.append(f"| [`{package}.{name}`][{address}] | {_first_sentence(thing)} |")
    return "\n".join(rows)


def _module(thing: Any, otherwise: str) -> str:
    """Where a class or function is defined; constants do not know."""
    known = inspect.isclass(thing) or inspect.isroutine(thing)
    return str(thing.__module__) if known else otherwise


def _first_sentence(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|")


def _codes(module: str, mapping: str) -> str:
    meanings = getattr(importlib.import_module(module), mapping)
    return "\n".join(["| code | |", "| --- | --- |", *(f"| `{code}` | {words} |" for code, words in meanings.items())])


def _problem_fields(which: str) -> str:
    """The fields of a problem file, as reading it checks them."""
    fields = importlib.import_module("kfl.scheduling.problem_schema")
    rows = ["| field | meaning | must be | if left out |", "| --- | --- | --- | --- |"]
    for field in (fields.CELL_FIELDS if which == "cell" else fields.DEVICE_FIELDS).values():
        rows.append(f"| `{field.name}` | {field.meaning} | {field.right} | {field.otherwise} |")
    return "\n".join(rows)


def _preset_names() -> str:
    rows = ["| `--radio` | what it is | energy |", "| --- | --- | --- |"]
    for name, preset in importlib.import_module("kfl.wireless").PRESET_SOURCES.items():
        rows.append(f"| [`{name}`](reference/wireless.md#{name}) | {preset.about} | {_model(preset)} |")
    return "\n".join(rows)


def _model(preset: Any) -> str:
    free_clock = "printed radio, free clock" if preset.cell.circuit_power_w == 0 else "whole device"
    return "as printed" if preset.cell.printed_model else free_clock


def _preset_sources() -> str:
    """One section per ready-made cell; fields in the order of `CellConfig`."""
    wireless = importlib.import_module("kfl.wireless")
    order = list(wireless.CellConfig.__dataclass_fields__)
    lines = []
    for name, preset in wireless.PRESET_SOURCES.items():
        about = f"{preset.about[0].upper()}{preset.about[1:]}"
        lines += [f"### {name}", "", f"{about}. Energy: {_model(preset)}.", ""]
        lines += ["| field | value | source | remark |", "| --- | --- | --- | --- |"]
        for field, figure in sorted(preset.figures.items(), key=lambda item: order.index(item[0])):
            lines.append(f"| `{field}` | {_value(field, figure.value)} | {figure.source} | {figure.remark} |")
        lines.append("")
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
