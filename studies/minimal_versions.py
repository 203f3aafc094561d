"""Do the oldest versions that pyproject.toml admits work? Installs them into an environment of their own and tests.

    python -m studies.minimal_versions --out docs/results/minimal-versions.txt
    python -m studies.minimal_versions --extras data plot --tests tests/data tests/plots

uv finds the oldest versions of the dependencies and extras that agree with each other (`--resolution lowest-direct`);
what those depend on is as new as they admit. The tests are those that use each package most.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tomllib
import venv
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ["data", "plot", "pandas", "fast", "privacy", "flower", "ray", "tensorboard", "mlflow", "wandb", "test"]
"""What is tried: everything that people install, and the tests' own libraries."""
UV = str(Path(sys.executable).with_name("uv"))
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


def oldest(extras: list[str], path: Path) -> list[str]:
    """The oldest versions that agree, written to a file; those that pyproject.toml asks for itself are returned."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    names = {re.split(r"[^A-Za-z0-9._-]", one)[0].lower() for one in asked}
    options = ["--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct", "--output-file", str(path)]
    options += [word for extra in extras for word in ("--extra", extra)]
    subprocess.run([UV, "pip", "compile", *options, str(ROOT / "pyproject.toml")], check=True)
    return [line for line in path.read_text().splitlines() if line.partition("==")[0] in names]


def main() -> int:
    """Install, check, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", default=EXTRAS)
    parser.add_argument("--tests", nargs="+", default=[one for one in TESTS if (ROOT / one).exists()])
    parser.add_argument("--environment", type=Path, default=ROOT / "build" / "minimal", help="folder to make")
    parser.add_argument("--workers", default="2", help="test processes (default 2)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.environment.mkdir(parents=True, exist_ok=True)
    python, versions = options.environment / "bin" / "python", options.environment / "versions.txt"
    asked = oldest(options.extras, versions)
    if not python.exists():
        venv.create(options.environment, with_pip=True)
    install = [UV, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, "--requirement", str(versions)], check=True)
    subprocess.run([*install, "--no-deps", "--editable", str(ROOT)], check=True)
    agrees = subprocess.run([UV, "pip", "check", "--python", str(python)], capture_output=True, text=True, check=False)
    # A warning is an error only with the tested versions: old libraries warn of newer ones.
    arguments = ["-q", "-n", options.workers, "-W", "default", "--tb=short", *options.tests]
    tests = subprocess.run(
        [str(python), "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(tests.stdout[-20000:], file=sys.stderr)
    failed = [line for line in tests.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    text = [
        f"python -m studies.minimal_versions; Python {platform.python_version()}, {date.today()}",
        "",
        "The oldest versions that pyproject.toml admits: " + ", ".join(asked),
        f"uv pip check: {(agrees.stdout + agrees.stderr).strip().splitlines()[-1]}",
        f"tests: {tests.stdout.strip().splitlines()[-1]}",
        *failed,
    ]
    print("\n".join(text))
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
