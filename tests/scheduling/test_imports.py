"""Scheduling needs NumPy, `kfl.core` and pydantic (for problem files): it runs without torch, SciPy and Numba."""

import subprocess
import sys

import numpy as np
import pytest

from kfl.scheduling import read_problem
from kfl.wireless import CellConfig

PROGRAM = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "numba"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Refuse())
from kfl.scheduling import SCHEDULERS, read_problem, schedule
from kfl.wireless import PRESETS, Cell

text = "id,gain_db,payload_bits\\na,-95,2e6\\nb,-100,2e6\\n"
for kind in SCHEDULERS.values():
    for problem in (read_problem(text, bandwidth_hz=1e6), Cell.build(PRESETS["paper-mnist-modem"], 5, 0).problem(
        2, flops=1e9, payload_bits=2e4, samples=600
    )):
        print(kind.name, [len(one.devices) for one in schedule(problem, kind()).rounds])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "scipy", "numba"}))
rooms = ("kfl.engine", "kfl.models", "kfl.data", "kfl.algorithms")
print(sorted(name for name in sys.modules if name.startswith(rooms)))
"""


def test_scheduling_runs_without_torch_scipy_and_numba() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[-2:] == ["[]", "[]"] and "dual [2]" in lines


def test_defaults_of_a_problem_are_those_of_a_cell() -> None:
    problem, cell = read_problem("id,gain,payload_bits,flops,cpu_hz\na,1e-9,1e4,1e9,1e9\n"), CellConfig()
    assert (problem.bandwidth_hz, problem.noise_dbm_per_hz) == (cell.bandwidth_hz, cell.noise_dbm_per_hz)
    assert (problem.deadline_s[0], problem.max_power_w[0]) == (cell.deadline_s, cell.max_power_w)
    assert problem.compute_time_s[0] == pytest.approx(1e9 / (1e9 * cell.flops_per_cycle))
    assert problem.compute_energy_j[0] == pytest.approx(cell.power_coefficient * 1e9 / cell.flops_per_cycle * 1e18)
    drawn = (problem.device.static_power_w, problem.device.circuit_power_w, problem.device.amplifier_efficiency)
    assert np.ravel(drawn).tolist() == [cell.static_power_w, cell.circuit_power_w, cell.amplifier_efficiency]
