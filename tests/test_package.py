"""The package itself: its wheel, its imports, its floors."""

import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.scheduling import SCHEDULERS
from kfl.wireless import CHANNELS

ROOT = Path(__file__).parents[1]
on_page_markdown = runpy.run_path(str(ROOT / "docs" / "generated.py"))["on_page_markdown"]


def test_a_wheel_builds_and_what_is_in_it_imports(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.glob("kfl-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert "kfl/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "examples", "benchmarks")) for name in names)
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    assert subprocess.run(install, capture_output=True, timeout=120, check=False).returncode == 0
    check = f"import sys; sys.path.insert(0, {str(target)!r}); import kfl, kfl_fleet; "
    check += "print(kfl.__file__, kfl_fleet.__file__)"
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [str(target / name / "__init__.py") for name in ("kfl", "kfl_fleet")]


@pytest.mark.parametrize("blocked", ["tyro rich mlxtend matplotlib pyarrow PIL cvxpy hypothesis"])
def test_the_library_runs_with_pytorch_numpy_and_scipy_alone(blocked):
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked.split()!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy as np, kfl
y = np.arange(100) % 2
x = np.random.default_rng(0).normal(size=(100, 4)).astype('float32') + y[:, None]
history = kfl.run(kfl.Experiment(devices=4, rounds=1, widths=(8,)), dataset=kfl.Dataset.from_arrays(x, y))
assert len(history.rounds) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


NAMES = [name for name in kfl.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_everything_public_exists_and_is_documented_with_an_example(name):
    """Examples are doctests: of the thing itself, of its methods or of its module. The suite runs them all."""
    thing = getattr(kfl, name)
    members = vars(thing).values() if isinstance(thing, type) else ()
    texts = [thing.__doc__, sys.modules[thing.__module__].__doc__, *(getattr(m, "__doc__", None) for m in members)]
    assert thing.__doc__ and any(">>>" in text for text in texts if isinstance(text, str))


def test_every_algorithm_and_scheduler_is_public():
    for registry in (ALGORITHMS, SCHEDULERS):
        for cls in registry.values():
            assert getattr(kfl, cls.__name__) is cls


def test_help_and_the_top_level_do_not_import_pytorch():
    code = "import sys, kfl; kfl.Experiment, kfl.Kfl, kfl.Lyapunov, kfl.CellConfig; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


REFERENCE = ROOT / "docs" / "reference"
PACKAGES = sorted(folder.name for folder in (ROOT / "src" / "kfl").glob("[a-z]*/") if (folder / "__init__.py").exists())
PACKAGES.remove("deploy")  # the former place of kfl_fleet
HOMES = {**{name: f"kfl.{name}" for name in PACKAGES}, "fleet": "kfl_fleet"}


def entries(page):
    """What a page of the reference lists, by its addresses."""
    text = on_page_markdown(page.read_text(encoding="utf-8"))
    addresses = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert len(set(addresses)) == len(addresses), "an entry stands twice"
    return {address: pkgutil.resolve_name(address) for address in addresses}


def test_the_reference_lists_everything_public():
    """Each name that a package exports is on that package's page, or on the page of the package that defines it."""
    listed = {name: entries(REFERENCE / f"{name}.md") for name in HOMES if name != "cli"}
    things = {id(thing) for page in listed.values() for thing in page.values()}
    things |= {id(error) for error in vars(kfl.core.errors).values()}  # listed as a module
    for name in NAMES:
        assert id(getattr(kfl, name)) in things, f"docs/reference does not list kfl.{name}"
    for package in listed:
        home = importlib.import_module(HOMES[package])
        missing = [name for name in getattr(home, "__all__", ()) if id(getattr(home, name)) not in things]
        assert not missing, f"docs/reference/{package}.md does not list {missing}"
    for registry in (ALGORITHMS, SCHEDULERS, CHANNELS):
        assert {id(thing) for thing in registry.values()} <= things


def test_the_index_of_the_reference_names_every_package_and_every_top_level_name():
    page = on_page_markdown((REFERENCE / "index.md").read_text(encoding="utf-8"))
    assert all(f"]({name}.md)" in page for name in HOMES if name != "cli")
    assert all(f"`kfl.{name}`][kfl." in page for name in NAMES)


def test_the_release_workflow_is_valid_and_publishes_only_what_was_tested():
    path = ROOT / ".github" / "workflows" / "release.yml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "attest"
    assert set(jobs["attest"]["needs"]) == {"build", "test", "install", "oldest"}
    assert "vars.PUBLISH == 'yes'" in jobs["publish"]["if"]
    writers = {name for name, job in jobs.items() if "write" in job["permissions"].values()}
    assert writers == {"attest", "publish"}  # nothing that runs the project's code can sign or publish
