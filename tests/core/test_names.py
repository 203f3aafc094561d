"""Names are data: every place that shows an untrusted name, fed with a corpus of the worst ones."""

import ast
import csv
import io
import json
import logging
import re
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest

import kfl
from kfl.cli.display import print_table
from kfl.cli.main import main
from kfl.cli.split_table import split_table
from kfl.comparison import Table
from kfl.core import names
from kfl.core.errors import ConfigError
from kfl.core.files import write_json
from kfl.core.terminal import plain_console, tell
from kfl.core.text import scrub
from kfl.data.partition import partition
from kfl.data.registry import short_name
from kfl.scheduling import read_problem
from tests.reference.nasty_names import NASTY, harmless

SOURCE = Path(kfl.__file__).parent


def of_each(test):
    """The test with every name of the corpus in turn, which a failure says."""

    @wraps(test)
    def every(**fixtures):
        for word, name in NASTY.items():
            try:
                test(name=name, **fixtures)
            except BaseException as problem:
                problem.add_note(f"with the name {word!r}")
                raise

    known = signature(test)
    every.__signature__ = known.replace(parameters=[one for one in known.parameters.values() if one.name != "name"])
    return every


@of_each
def test_one_harmless_line_of_bounded_length(name):
    for shown in (names.for_terminal(name, 60), names.for_label(name), names.for_plot(name), scrub(name, 60)):
        assert harmless(shown)
        assert "\n" not in shown
        assert len(shown) <= 62  # and a dollar or an underscore has a mark before it
    assert harmless(str(ConfigError("id", name, "a name")))
    assert len(str(ConfigError("id", name, "a name"))) < 300


@of_each
def test_html_has_no_tag_no_attribute_and_no_character_that_pages_may_not_have(name):
    shown = names.for_html(name)
    assert not set("<>\"'") & set(shown)
    assert harmless(shown.replace("\t", ""))
    assert shown.encode() and len(shown) < 30_000 if name else shown == ""


@of_each
def test_a_file_name_stays_in_its_folder(name, tmp_path):
    for made in (names.for_file_name(name), short_name(f"{name}:load") if name.strip() else "x"):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}", made)
        assert PurePosixPath(made).name == PureWindowsPath(made).name == made
        assert made.partition(".")[0].lower() not in {"con", "prn", "aux", "nul", "com1", "lpt1"}
        (tmp_path / made).write_text("here")
        assert (tmp_path / made).resolve().parent == tmp_path.resolve()


def test_long_names_that_differ_at_their_end_stay_two():
    assert names.for_file_name("n" * 500 + "a") != names.for_file_name("n" * 500 + "b")


@of_each
def test_a_cell_of_csv_is_no_formula_and_is_read_back(name):
    written = names.for_csv(name)
    assert not written.startswith(("=", "+", "@", "\t", "\r", "-"))
    out = io.StringIO()
    csv.writer(out).writerow([written, "1"])
    out.getvalue().encode()
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in name):  # no file can hold these
        assert names.from_csv(written) == name


@of_each
def test_json_is_the_same_value_in_characters_that_can_be_shown(name, tmp_path):
    text = names.for_json(json.dumps({"id": name}, ensure_ascii=False, indent=2))
    assert harmless(text)
    assert json.loads(text) == {"id": name}
    write_json(tmp_path / "x.json", {name: [name]})
    assert json.loads((tmp_path / "x.json").read_text()) == {name: [name]}


def test_a_table_of_markdown_keeps_its_shape():
    from markdown_it import MarkdownIt

    title, notes = _told()
    table = Table(title, {"entry": list(NASTY.values()), "x": ["1"] * len(NASTY)}, notes)
    page = table.markdown(NASTY["code of Markdown"])
    assert harmless(page)
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    assert sum(token.type == "tr_open" for token in tokens) == 1 + len(NASTY)
    assert sum(token.type == "td_open" for token in tokens) == 2 * len(NASTY)
    inside = [child.type for token in tokens for child in token.children or ()]
    assert not {"link_open", "image", "html_inline", "code_inline"} & set(inside)
    assert not any(token.type == "html_block" for token in tokens)
    assert [token.type for token in tokens].count("fence") == 1


def _told():
    return NASTY["tag"] + "\n# more", list(NASTY.values())


def test_a_terminal_shows_names_and_obeys_none(capsys):
    every = list(NASTY.values())
    tell(*every)
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == len(every) + 1
    print_table({"entry": every, NASTY["line break"]: every}, NASTY["markup of rich"], every)
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert "[bold red]x[/]" in shown
    assert ":smile:" in shown
    assert "\nkfl: all is well" not in shown
    with (console := plain_console(width=60)).capture() as caught:
        for name in every:
            console.print(name)
    assert harmless(caught.get())


def test_nothing_in_the_command_line_prints_by_other_means():
    """`print` and rich's own console would show a name as it is."""
    for path in (SOURCE / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in ("print", "Console")), f"{path}:{node.lineno}"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_kfl_schedule_with_such_ids(kind, tmp_path, capsys):
    ids = [name for name in NASTY.values() if name.strip()]
    if kind == "csv":  # a table in UTF-8; every line break in it is the same
        ids = [name for name in ids if not any(0xD800 <= ord(letter) < 0xE000 or letter == "\r" for letter in name)]
    problem, saved, following = tmp_path / f"cell.{kind}", tmp_path / "out.csv", tmp_path / f"next.{kind}"
    if kind == "json":
        devices = [{"id": name, "gain": 1e-9, "payload_bits": 5e4} for name in ids]
        problem.write_text(json.dumps({"rounds": 3, "devices": devices}))
    else:
        with problem.open("w", newline="", encoding="utf-8") as file:
            rows = ([names.for_csv(name), 1e-9, 5e4] for name in ids)
            csv.writer(file).writerows([["id", "gain", "payload_bits"], *rows])
    words = ["schedule", str(problem), "--save", str(saved), "--next", str(following)]
    assert main(words) == 0
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert harmless(said.out + said.err)
    rows = csv.DictReader(io.StringIO(saved.read_text(), newline=""))
    assert {row["id"][:1] for row in rows}.isdisjoint("=+@-")
    assert list(read_problem(problem if kind == "csv" else following).ids) == ids


def test_a_bad_value_in_a_file_is_one_harmless_sentence(tmp_path, capsys):
    for name in NASTY.values():
        (tmp_path / "x.json").write_text(json.dumps({"devices": [{"id": name, "gain": name, "payload_bits": 1}]}))
        assert main(["schedule", str(tmp_path / "x.json")]) == 2
        said = capsys.readouterr().err
        assert harmless(said)
        assert said.count("\n") == 1
        assert len(said) < 1000


def test_devices_of_a_strangers_file():
    some = list(NASTY.values())[:30]
    labels = np.arange(4 * len(some)) % 2
    given = partition("iid", labels, labels, 2, len(some), seed=0)
    shown = split_table(replace(given, names=tuple(some)), 200)
    assert harmless(shown)
    assert len(shown.split("\n")) == 5 + len(some)


def test_log_lines_are_lines_as_text_and_as_json(tmp_path):
    from kfl_fleet.logs import logging_as, logging_into, note

    stream = io.StringIO()
    with logging_as("text", "kfl: ", stream), logging_into(tmp_path / "server.log", "text"):
        for name in NASTY.values():
            note("log", f"Device {name} joined.", device=name)
    lines = stream.getvalue().split("\n")[:-1]
    assert len(lines) == len(NASTY)
    assert all(harmless(line) and line.startswith("kfl: Device") and len(line) < 2100 for line in lines)
    assert len((tmp_path / "server.log").read_text().splitlines()) == len(NASTY)
    stream = io.StringIO()
    with logging_as("json", "", stream):
        for name in NASTY.values():
            note("log", f"Device {name} joined.", level=logging.WARNING, device=name)
    found = [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]
    assert [line["device"] for line in found] == list(NASTY.values())
    assert harmless(stream.getvalue())


def test_labels_of_metrics_can_be_served():
    from prometheus_client import CollectorRegistry, Counter, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    counter = Counter("kfl_x", "Of a test.", ["code"], registry=registry)
    for name in NASTY.values():
        counter.labels(names.for_label(name)).inc()
    text = generate_latest(registry).decode()
    assert harmless(text)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    totals = [sample for sample in samples if sample.name.endswith("_total")]
    assert {sample.labels["code"] for sample in totals} == set(map(names.for_label, NASTY.values()))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_plot_shows_dollars_as_dollars(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 9))
    axes = figure.subplots()
    for at, name in enumerate(NASTY.values()):
        axes.plot([0, 1], [at, at], label=names.for_plot(name) or "?")
        axes.text(0, at, names.for_plot(name), fontsize=4)
    legend = axes.legend(fontsize=3)
    assert len(legend.get_texts()) == len(NASTY)  # none is left out for its underscore
    figure.savefig(tmp_path / "x.png", dpi=40)
    figure.savefig(tmp_path / "x.svg")
    assert "<script" not in (tmp_path / "x.svg").read_text()
