"""Tables and pictures of what was run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kfl.comparison import Comparison
from kfl.comparison.statistics import Difference, holm, paired_difference, spread
from kfl.core.files import write_atomic
from kfl.core.names import markdown_table
from studies.common_encoder.conditions import CONDITIONS
from studies.common_encoder.pictures import draw, means
from studies.common_encoder.run import CURVES, LINES, PARTS, read

OURS = "common-knowledge"
PAGE = "heads.md"
NETWORKS, NETWORKS_PAGE = "networks", "networks.md"
"""The folder of the comparison, and its page."""
POINT = 0.01
Lines = Mapping[str, Mapping[int, Mapping[str, object]]]
"""Of one condition: by method and seed."""


def write(out: Path) -> None:
    """Write the page and the pictures of a folder of results."""
    write_atomic(out / PAGE, page(out).encode())
    if (out / NETWORKS).exists():
        write_atomic(out / NETWORKS_PAGE, networks_page(out).encode())
    if (out / CURVES).exists():
        draw(out)


def page(out: Path) -> str:
    """The tables of a folder of results."""
    found: dict[str, dict[str, dict[int, Mapping[str, object]]]] = {}
    for line in read(out / LINES):
        method = found.setdefault(str(line["condition"]), {}).setdefault(str(line["method"]), {})
        method[int(str(line["seed"]))] = line
    lines = {name: found[name] for name in CONDITIONS if name in found}
    marks = _holm(lines)
    text = ["### Common knowledge against what a device can do alone, and against rivals", ""]
    text += [*markdown_table(_first(lines, marks)), "", LEGEND, ""]
    text += ["### Every method", "", "Accuracy on a device's own classes, %; mean over seeds.", ""]
    text += [*markdown_table(_all(lines)), ""]
    text += ["### Classes never held", "", "Accuracy over all ten classes of one classifier for all devices, %.", ""]
    text += [*markdown_table(_everything(lines)), ""]
    if (out / CURVES).exists():
        text += ["### How soon most of it is there", "", SOON, "", *markdown_table(_soon(read(out / CURVES))), ""]
    text += ["```", *(f"python -m studies.common_encoder {part}" for part in (*PARTS, "table")), "```", ""]
    return "\n".join(text)


MOST = 0.95
SOON = (
    "Joules and reports after which the first 20 devices have 95 % of the accuracy that they end with, means over "
    "seeds: ten devices in a round at random, and single reports in the order of what the server lacks or in any order."
)


def networks_page(out: Path) -> str:
    """The tables of methods that train, on the same encoder."""
    found = [Comparison.load(folder) for folder in sorted((out / NETWORKS).iterdir())]
    command = "python -m studies.common_encoder networks"
    return "\n".join(one.markdown(command if one is found[-1] else None, heading="###") for one in found)


LEGEND = (
    "✓: not zero after Holm's correction over all conditions of the column; brackets: 95 % interval of the t-test "
    "paired by seed. Best twin and best rivals are chosen by their tests, in their favor. Below: share of devices more "
    "than a point below that twin, on the same tests. *Rival, no more bits*: the best rival whose upload is no larger, "
    "either of fewer numbers of the encoder or of means sent with our quantizer. *Rival, any bits*: 32 bits a number, "
    "with second moments where the method has them."
)


def twins(methods: Iterable[str]) -> list[str]:
    """Methods that upload nothing."""
    return [name for name in methods if name.startswith("own ")]


def accuracy(lines: Lines, method: str) -> dict[int, float]:
    """Mean accuracy over devices by seed."""
    return {seed: sum(devices) / len(devices) for seed, line in lines[method].items() if (devices := _devices(line))}


def best(lines: Lines, methods: Iterable[str]) -> str:
    """The method with the highest accuracy."""
    return max(methods, key=lambda name: spread(list(accuracy(lines, name).values())).mean)


def bits(lines: Lines, method: str) -> float:
    """Bits of one upload on average."""
    return spread([float(str(line["bits"])) for line in lines[method].values()]).mean


def rivals(lines: Lines, most: float | None) -> list[str]:
    """Methods of others, with uploads of at most so many bits."""
    theirs = [name for name in lines if not name.startswith((OURS, "own "))]
    return [name for name in theirs if most is None or bits(lines, name) <= most]


def below(lines: Lines, method: str) -> float:
    """The share of devices on which common knowledge is more than a point below a method."""
    pairs = [
        (ours, theirs)
        for seed in lines[OURS]
        for ours, theirs in zip(_devices(lines[OURS][seed]), _devices(lines[method][seed]), strict=True)
    ]
    return sum(ours < theirs - POINT for ours, theirs in pairs) / len(pairs)


def gain(lines: Lines, method: str) -> Difference:
    """Common knowledge minus a method, paired by seed."""
    found = paired_difference(accuracy(lines, OURS), accuracy(lines, method))
    assert found is not None
    return found


def _devices(line: Mapping[str, object]) -> Sequence[float]:
    found = line["devices"]
    assert isinstance(found, list)
    return found


def _choices(lines: Lines) -> dict[str, str]:
    """What common knowledge is compared with in a condition, by column."""
    found = {"gain": best(lines, twins(lines)), "any bits": best(lines, rivals(lines, None))}
    few = rivals(lines, bits(lines, OURS))
    return {**found, "no more bits": best(lines, few)} if few else found


def _holm(found: Mapping[str, Lines]) -> set[tuple[str, str]]:
    """Condition and column of differences that hold after Holm's correction within their column."""
    kept = set()
    for column in ("gain", "any bits", "no more bits"):
        p_values = {
            name: gain(lines, chosen[column]).p_value()
            for name, lines in found.items()
            if column in (chosen := _choices(lines))
        }
        levels = holm(p_values)
        kept |= {(name, column) for name, p in p_values.items() if p <= levels[name]}
    return kept


def _first(found: Mapping[str, Lines], marks: set[tuple[str, str]]) -> dict[str, list[str]]:
    cells: dict[str, list[str]] = {}
    for name, lines in found.items():
        chosen = _choices(lines)

        def compared(column: str, name: str = name, lines: Lines = lines, chosen: dict[str, str] = chosen) -> str:
            if column not in chosen:
                return "–"
            mark = " ✓" if (name, column) in marks else ""
            return f"{gain(lines, chosen[column]).text(1)}{mark} {'' if column == 'gain' else chosen[column]}".rstrip()

        row = {
            "condition": name,
            "best twin, %": f"{_percent(accuracy(lines, chosen['gain']))} {chosen['gain']}",
            "common knowledge, %": spread(list(accuracy(lines, OURS).values())).text(1),
            "gain": compared("gain"),
            "below twin, %": f"{100 * below(lines, chosen['gain']):.1f}",
            "below common head, %": f"{100 * below(lines, f'{OURS}: common head'):.1f}",
            "bits in all": f"{bits(lines, OURS):,.0f}",
            "minus rival, no more bits": compared("no more bits"),
            "minus rival, any bits": compared("any bits"),
            "devices differ": f"{_difference(lines):.3f}",
        }
        for column, cell in row.items():
            cells.setdefault(column, []).append(cell)
    return cells


def _difference(lines: Lines) -> float:
    """tr(B)/d of the reports, which one of the lines of common knowledge tells."""
    names = [name for name in lines if name.startswith(OURS) and "difference" in next(iter(lines[name].values()))]
    return spread([float(str(line["difference"])) for line in lines[min(names, key=len)].values()]).mean


def _percent(values: Mapping[int, float]) -> str:
    return spread(list(values.values())).text(1)


def _all(found: Mapping[str, Lines]) -> dict[str, list[str]]:
    methods = list(dict.fromkeys(method for lines in found.values() for method in lines))
    cells = {"method": methods}
    for name, lines in found.items():
        means = [f"{100 * spread(list(accuracy(lines, m).values())).mean:.1f}" if m in lines else "–" for m in methods]
        cells[name] = means
    return cells


def _everything(found: Mapping[str, Lines]) -> dict[str, list[str]]:
    mine = {name: lines for name, lines in found.items() if not CONDITIONS[name].by_person}
    methods = [m for m in dict.fromkeys(m for lines in mine.values() for m in lines) if _over_all(mine, m)]
    cells = {"method": methods}
    for name, lines in mine.items():
        cells[name] = [
            f"{100 * spread([float(str(one['all'])) for one in lines[m].values()]).mean:.1f}" if m in lines else "–"
            for m in methods
        ]
    return cells


def _soon(lines: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """What it takes to reach most of the final accuracy, by condition."""
    cells: dict[str, list[str]] = {}
    for name in dict.fromkeys(str(line["condition"]) for line in lines):
        mine = [line for line in lines if line["condition"] == name]
        rounds = means(mine, "rounds", lambda line: (float(str(line["round"])),))
        joules = means(mine, "rounds", lambda line: (float(str(line["round"])),), "energy_j", 1.0)
        row = {"condition": name, "joules in all": f"{max(joules.values()):.3g}"}
        row["until 95 %"] = f"{joules[_first_with_most(rounds)]:.3g}"
        for worth in ("what is missing", "samples"):
            chosen = [line for line in mine if line.get("worth") == worth]
            reports = means(chosen, "reports", lambda line: (float(str(line["reports"])),))
            label = "reports, by what is missing" if worth == "what is missing" else "in any order"
            row[label] = f"{_first_with_most(reports)[0]:.0f}"
        for column, cell in row.items():
            cells.setdefault(column, []).append(cell)
    return cells


def _first_with_most(accuracy: Mapping[tuple[float, ...], float]) -> tuple[float, ...]:
    """The first point of a curve with most of what its last one has."""
    return next(place for place in accuracy if accuracy[place] >= MOST * accuracy[max(accuracy)])


def _over_all(found: Mapping[str, Lines], method: str) -> bool:
    return any(line["all"] is not None for lines in found.values() for line in lines.get(method, {}).values())
