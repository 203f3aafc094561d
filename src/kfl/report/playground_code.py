"""The state of the playground to take home: as a program, as commands, as a file."""

from __future__ import annotations

from dataclasses import fields

from kfl.report.playground_settings import Settings
from kfl.scheduling.problem_file import json_text, problem_table
from kfl.wireless import PRESETS


def _changed(settings: Settings) -> dict[str, float]:
    """The fields of the radio that are not as the preset has them."""
    preset = PRESETS[settings.cell]
    return {name: value for name, value in settings.moved().items() if value != getattr(preset, name)}


def _parameters(settings: Settings) -> dict[str, object]:
    """Parameters of the scheduler that are not its defaults."""
    made = settings.make_scheduler()
    return {f.name: getattr(made, f.name) for f in fields(made) if getattr(made, f.name) != f.default}


def python_code(settings: Settings) -> str:
    """A program that decides every round of this state, by the library alone."""
    kind = type(settings.make_scheduler()).__name__
    given = ", ".join(f"{name}={value!r}" for name, value in _parameters(settings).items())
    radio = f'PRESETS["{settings.cell}"]'
    if changed := _changed(settings):
        radio = f"replace({radio}, {', '.join(f'{name}={value!r}' for name, value in changed.items())})"
    hard = ", hard_budget=True" if settings.hard_budget else ""
    return f"""\
from dataclasses import replace

from kfl.report.playground import cell_problem
from kfl.scheduling import {kind}, schedule
from kfl.wireless import PRESETS

radio = {radio}
problem = cell_problem(
    radio, devices={settings.devices}, rounds={settings.rounds}, seed={settings.seed},
    flops={settings.flops!r}, payload_bits={settings.payload_bits!r}, samples={settings.samples!r}{hard},
)
horizon = schedule(problem, {kind}({given}))

shown = horizon.rounds[{settings.round - 1}]
for device, share, power_w in zip(shown.devices, shown.share, shown.power_w):
    print(f"{{problem.ids[device]}}: {{share:.2%}} of the band, {{power_w:.3g}} W")
spent_j = horizon.compute_energy_j + horizon.upload_energy_j
print(f"{{len(shown.devices)}} devices; the fleet spends {{spent_j.sum():.4g}} J of {{problem.budget_j.sum():.4g}} J")
"""


def command_lines(settings: Settings) -> str:
    """The same decisions with `kfl schedule`, and a training run in the same cell with `kfl run`."""
    flags = [f"--scheduler {settings.scheduler}"]
    flags += [f"--scheduler.{name.replace('_', '-')} {value}" for name, value in _parameters(settings).items()]
    cell = [f"--radio {settings.cell}"]
    cell += [f"--radio.{name.replace('_', '-')} {value!r}" for name, value in _changed(settings).items()]
    fleet = [f"--devices {settings.devices}", f"--rounds {settings.rounds}", f"--seed {settings.seed}"]
    fleet += ["--hard-budget"] if settings.hard_budget else []
    return (
        "# These very decisions, from the file cell.json below:\n"
        f"kfl schedule cell.json {' '.join(flags)}\n\n"
        "# Train in this cell. Payload and computation are then those of the model and the algorithm:\n"
        f"kfl run {' '.join([*fleet, *cell, *flags])}\n"
    )


def problem_file(settings: Settings) -> str:
    """The cell with its channel as a file for `kfl schedule`."""
    from kfl.report.playground_model import Play

    top, devices = problem_table(Play(settings).problem)
    return json_text({**top, "devices": devices})
