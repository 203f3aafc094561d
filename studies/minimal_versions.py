"""Do the oldest versions that pyproject.toml admits work? Installs them into an environment of their own and tests.

    python -m studies.minimal_versions --out docs/results/minimal-versions.txt
    python -m studies.minimal_versions --extras data plot --tests tests/data tests/plots

Each `>=` of the dependencies and of the extras becomes `==`; what those depend on is as new as they admit. Whatever
comes with a range that does not start at a version (`==`, or nothing) stays as it is. `--newer torch==2.13.0` replaces
a minimum, for a version that cannot be installed here. The tests are those that use each package most.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from benchmarks.machine import machine

ROOT = Path(__file__).parents[1]
EXTRAS = ["data", "plot", "pandas", "fast", "privacy", "flower", "ray", "tensorboard", "mlflow", "wandb", "test"]
"""What is tried: everything that people install, and the tests' own libraries."""
TESTS = [
    "tests/core",
    "tests/data",
    "tests/plots",
    "tests/runfolder",
    "tests/report",
    "tests/scheduling/test_against_cvxpy.py",
    "tests/algorithms/test_privacy.py",
    "tests/algorithms/test_contract.py",
    "tests/_kernels/test_cpu_convolutions.py",
    "tests/engine/test_stacked.py",
    "tests/cli/test_main.py",
    "tests/cli/test_schedule.py",
    "tests/cli/test_completion.py",
    "tests/simulation/test_run.py",
    "tests/simulation/test_resume.py",
    "tests/simulation/test_ray.py",
    "tests/deploy/test_objects.py",
    "tests/deploy/test_loop.py",
    "tests/deploy/test_watch.py",
    "tests/deploy/test_fleet.py",
]


def minimum(requirement: str) -> str | None:
    """The oldest version that a requirement admits, as one that admits nothing else; None if it names none.

    >>> minimum("numpy>=1.26"), minimum("mkdocstrings[python]>=0.26"), minimum("kfl[data]")
    ('numpy==1.26', 'mkdocstrings==0.26', None)
    """
    found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)", requirement)
    return f"{found.group(1)}=={found.group(2)}" if found else None


def minima(extras: list[str], newer: list[str]) -> list[str]:
    """The oldest versions of the dependencies and of some extras; where two differ, what both admit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    found: dict[str, str] = {}
    for one in [*filter(None, map(minimum, wanted)), *newer]:
        name, _, version = one.partition("==")
        found[name] = version
    return [f"{name}=={version}" for name, version in found.items()]


def main() -> int:
    """Install, check, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", default=EXTRAS)
    parser.add_argument("--newer", nargs="+", default=[], help="versions in place of the oldest")
    parser.add_argument("--tests", nargs="+", default=[one for one in TESTS if (ROOT / one).exists()])
    parser.add_argument("--environment", type=Path, default=ROOT / "build" / "minimal", help="folder to make")
    parser.add_argument("--workers", default="2", help="test processes (default 2)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    python, oldest = options.environment / "bin" / "python", minima(options.extras, options.newer)
    if not python.exists():
        venv.create(options.environment, with_pip=True)
    constraints = options.environment / "minimal.txt"
    constraints.write_text("\n".join(oldest) + "\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "-c", str(constraints), "-e", f"{ROOT}[{','.join(options.extras)}]"], check=True
    )
    agrees = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    # A warning is an error only with the tested versions: old libraries warn of newer ones.
    arguments = ["-q", "-n", options.workers, "-W", "default", "--tb=short", *options.tests]
    tests = subprocess.run(
        [str(python), "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(tests.stdout[-20000:], file=sys.stderr)
    failed = [line for line in tests.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    text = [
        f"python -m studies.minimal_versions; {machine()}",
        "",
        "The oldest versions that pyproject.toml admits: " + ", ".join(oldest),
        f"pip check: {agrees.stdout.strip()}",
        f"tests: {tests.stdout.strip().splitlines()[-1]}",
        *failed,
    ]
    print("\n".join(text))
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
