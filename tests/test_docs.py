"""The Python in README and docs runs. Numbers of rounds are cut to two; nothing else is changed."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/own.md",
    "docs/report.md",
    "docs/sharing.md",
    "docs/fleet.md",
    "docs/reliability.md",
]


def program(page: str) -> str:
    """All Python of a page, in order."""
    blocks = [code for _, code in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    assert blocks, f"{page} has no Python in it"
    return re.sub(r"rounds=\d+", "rounds=2", "\n".join(blocks))


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    x, y = draw.random((200, 1, 28, 28), dtype=np.float32), np.arange(200) % 10
    given = {
        "train_x": x,
        "train_y": y,
        "test_x": x[:50],
        "test_y": y[:50],
        "person": [f"p{k % 5}" for k in range(len(y))],
        "my_torch_dataset": list(zip(x, y, strict=True)),
    }
    code = program(page).replace("kfl.Experiment()", "kfl.Experiment(rounds=2)")
    exec(compile(code, page, "exec"), given)


generated = runpy.run_path(str(ROOT / "docs" / "generated.py"))


@pytest.mark.parametrize("page", generated["pages"](), ids=lambda page: page.stem)
def test_the_tables_in_a_page_are_what_the_code_says_today(page):
    """If not: python docs/generated.py."""
    text = page.read_text(encoding="utf-8")
    assert generated["written"](text) == text


def test_guides_are_readable_without_the_site():
    """On GitHub, too: no table and no entry stands for something that only MkDocs fills in."""
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^(--8<--|:::|<!-- (every|rest|exports))", prose, re.MULTILINE), page.name


def test_lines_of_the_readme_fit_a_hundred_columns():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > 100 and not line.startswith("|")]
    assert long == [] and len(lines) < 130


def test_the_life_of_a_round_names_files_and_functions_that_exist():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:\w+/)+\w+\.py)\b", page))
    found = [
        path
        for file in named
        for path in (ROOT / "src" / "kfl" / file, ROOT / "src" / file, ROOT / file)
        if path.exists()
    ]
    assert len(found) == len(named) > 25
    code = "\n".join(path.read_text(encoding="utf-8") for path in found)
    for name in re.findall(r"`(?:fleet|scheduler|algorithm|Runner)\.(?!json)(\w+)", page):
        assert f"def {name}(" in code


def test_the_tests_that_hold_what_security_promises_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 15 and [name for name in named if not (ROOT / name).is_file()] == []
