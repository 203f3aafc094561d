"""`kfl schedule` as its users call it: files, pipes, tables, JSON, round after round, and every kind of bad input."""

import csv
import io
import json
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from kfl.cli.main import main
from kfl.scheduling import SCHEDULERS
from kfl.scheduling.problem_schema import CELL_FIELDS, DEVICE_FIELDS, TRACES
from kfl.scheduling.uplink import ENERGY_PARTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _screen(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Run the command in this process: status, standard output, standard error."""

    def run(*words):
        try:
            status = main(["schedule", *map(str, words)])
        except SystemExit as stop:  # tyro answers a wrong flag itself
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def strict_json(text):
    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")

    return json.loads(text, parse_constant=refuse)


def shell(line, stdin=None):
    kfl = f"{sys.executable} -m kfl.cli.main"
    words = ["bash", "-o", "pipefail", "-c", line.replace("kfl ", kfl + " ")]
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def small_cell(**top):
    return {
        "bandwidth_hz": 1e6,
        "rounds": 50,
        "payload_bits": 4e5,
        "samples": 500,
        "compute_time_s": 0.2,
        "compute_energy_j": 0.02,
        "budget_j": 2.0,
        **top,
        "devices": [{"id": f"d{k}", "gain_db": -100 - 4 * k} for k in range(6)],
    }


def write(name, table):
    Path(name).write_text(table if isinstance(table, str) else json.dumps(table))
    return name


# ── In a shell ───────────────────────────────────────────────────────────────


def test_the_example_goes_through_a_pipe_and_a_reader_may_leave_early():
    result = shell("kfl schedule --example | kfl schedule - | head -n 1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Round 12 of a horizon of 100: 7 devices on 180 kHz, scheduler dual")


def test_bad_input_is_one_sentence_and_status_2():
    result = shell("kfl schedule -", '{"devices": [\n  {"id": "a",, "gain": 1}]}')
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kfl: This is not valid JSON") and "line 2, column 14" in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


def test_torch_is_not_needed():
    code = "import sys; from kfl.cli.main import main; main(['schedule', '--fields']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.endswith("False\n")


def test_the_program_in_examples_runs():
    result = shell(f"{sys.executable} {ROOT / 'examples' / 'allocate_cell.py'}")
    assert (result.returncode, result.stderr) == (0, "")
    shares = [float(line.split()[1]) for line in result.stdout.splitlines()[1:6]]
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    together, equal = (float(line.split(" J")[0].split()[-1]) for line in result.stdout.splitlines()[6:8])
    assert together < equal


# ── Formats ──────────────────────────────────────────────────────────────────


def test_parameters_of_the_scheduler_that_json_cannot_hold_are_null(call):
    path = write("problem.json", call("--example")[1])
    told = strict_json(call(path, "--json", "--scheduler.dearest-upload", "inf")[1])["scheduler"]
    assert (told["v"], told["dearest_upload"], told["relative_v"]) == (None, None, 1.0)


def test_json_in_is_csv_in(call):
    results = []
    for kind in ("json", "csv"):
        status, text, _ = call("--example", kind)
        assert status == 0
        results.append(strict_json(call(write(f"problem.{kind}", text), "--json")[1]))
    assert results[0] == results[1]
    assert [row["outcome"] for row in results[0]["devices"]].count("scheduled") == 3


def test_example_alone_is_json(call):
    assert call("--example")[1] == call("--example", "json")[1] != call("--example", "csv")[1]


def test_json_output_is_complete_and_in_si_units(call):
    status, out, err = call(write("p.json", small_cell()), "--json")
    assert (status, err) == (0, "")
    table = strict_json(out)
    one = table["rounds"][0]
    assert table["scheduler"]["name"] == "dual"
    assert one["lower_bound"] <= one["objective"] < 0 and one["gap"] == one["objective"] - one["lower_bound"]
    assert sum(row["share"] for row in one["devices"]) == pytest.approx(1.0) == one["share"]
    for row in one["devices"]:
        assert row["energy_j"] == row["compute_energy_j"] + row["upload_energy_j"]
        assert row["upload_energy_j"] == pytest.approx(row["power_w"] * row["upload_time_s"])
        assert row["time_s"] == pytest.approx(1.0)
    for row in table["devices"]:
        assert row["queue_j"] == max(row["energy_j"] - 2.0 / 50, 0)
        assert row["battery_j"] == 2.0 - row["energy_j"]
    assert [row["queue_j"] for row in table["next"]["devices"]] == [row["queue_j"] for row in table["devices"]]
    assert table["next"]["round"] == 1


def test_values_that_do_not_exist_are_null(call):
    cell = small_cell()
    del cell["budget_j"]
    table = strict_json(call(write("p.json", cell), "--json", "--scheduler", "all")[1])
    assert table["rounds"][0]["objective"] is table["rounds"][0]["gap"] is table["devices"][0]["battery_j"] is None
    assert "budget_j" not in table["next"]["devices"][0]


def test_save_writes_what_json_prints_and_csv_of_the_scheduled(call):
    write("p.json", small_cell())
    out = call("p.json", "--json", "--save", "result.json")[1]
    assert Path("result.json").read_text() == out
    text = call("p.json", "--save", "result.csv")[1]
    assert "The result is in result.csv." in text
    rows = list(csv.DictReader(io.StringIO(Path("result.csv").read_text())))
    expected = strict_json(out)["rounds"][0]["devices"]
    assert [row["id"] for row in rows] == [row["id"] for row in expected]
    assert [float(row["share"]) for row in rows] == [row["share"] for row in expected]


def test_options_go_on_top_of_the_file(call):
    write("p.json", small_cell())
    words = ("--bandwidth-hz", "2e6", "--deadline-s", "0.5", "--rounds", "9", "--hard-budget")
    following = strict_json(call("p.json", "--json", *words)[1])["next"]
    assert (following["bandwidth_hz"], following["rounds"], following["hard_budget"]) == (2e6, 9, True)
    assert {row["deadline_s"] for row in following["devices"]} == {0.5}


# ── Schedulers ───────────────────────────────────────────────────────────────


def test_a_scheduler_and_its_parameters_are_options(call):
    write("p.json", small_cell())
    table = strict_json(call("p.json", "--json", "--scheduler", "round-robin", "--scheduler.count", "2")[1])
    assert table["scheduler"] == {"name": "round-robin", "count": 2}
    assert [row["id"] for row in table["rounds"][0]["devices"]] == ["d0", "d1"]
    assert table["next"]["memory"] == {"next": [2.0]}


def test_help_lists_the_options_of_the_chosen_scheduler(call):
    status, out, _ = call("--scheduler", "uniform", "--help-all")
    assert status == 0
    out = out.partition("Examples:")[0]
    assert "--scheduler.count" in out and "--scheduler.v " not in out and "--next FILE" in out
    assert "None" not in out


def test_a_wrong_scheduler_or_flag_is_answered_with_the_right_ones(call):
    status, _, err = call("p.json", "--scheduler", "duel")
    assert status == 2 and "'duel'" in err and "dual" in err
    status, _, err = call("p.json", "--scheduler.relativ-v", "1")
    assert status == 2 and "--scheduler.relative-v" in err


@pytest.mark.parametrize(("model", "scheduler"), [("printed", name) for name in SCHEDULERS] + [("whole", "dual")])
def test_calling_round_after_round_is_the_whole_trace(call, model, scheduler):
    """Through problems in JSON and CSV in turn, of the printed model and of whole devices."""
    rounds, words = 6, ["--json", "--scheduler", scheduler]
    cell = (phones if model == "whole" else small_cell)(rounds=rounds)
    draw = np.random.default_rng(1)
    for device in cell["devices"]:
        del device["gain_db"]
        device["gains"] = (10 ** draw.uniform(-14, -11, rounds)).tolist()
    whole = strict_json(call(write("trace.json", cell), *words)[1])
    assert len(whole["rounds"]) == rounds

    now = json.loads(json.dumps(cell))
    for t in range(rounds):
        for device, source in zip(now["devices"], cell["devices"], strict=True):
            device.pop("gains", None)
            device["gain"] = source["gains"][t]
        file = f"next.{('json', 'csv')[t % 2]}"
        table = strict_json(call(write("now.json", now), *words, "--next", file)[1])
        assert table["rounds"][0] == whole["rounds"][t]
        now = table["next"]
        if t + 1 < rounds:
            assert call(file, *words)[1] == call(write("same.json", now), *words)[1]
    assert table["next"] == whole["next"]
    status, _, err = call(file)
    assert status == 2 and "every round of this horizon has been played" in err


# ── The whole device ─────────────────────────────────────────────────────────


def phones(**top):
    """Whole devices: a clock to slow, circuits, an amplifier, a tail."""
    cell = small_cell(
        cpu_hz=1e9, min_cpu_hz=2e8, static_power_w=0.01, circuit_power_w=0.5, amplifier_efficiency=0.3,
        min_power_dbm=-40, tail_energy_j=0.004, receive_energy_j=0.001,
    )  # fmt: skip
    return {**cell, **top}


def test_joules_by_part_add_up_in_csv_and_json(call):
    table = strict_json(call(write("p.json", phones()), "--json", "--save", "r.csv", "--scheduler", "all")[1])
    rows = list(csv.DictReader(io.StringIO(Path("r.csv").read_text())))
    assert len(rows) == 6 == len(table["rounds"][0]["devices"])
    for row in (*rows, *table["rounds"][0]["devices"], *table["devices"], table["rounds"][0]):
        part = {name: float(row[f"{name}_j"]) for name in ENERGY_PARTS}
        assert part["computing"] + part["static"] == pytest.approx(float(row["compute_energy_j"]), rel=1e-12)
        radio = part["radiating"] + part["circuits"] + part["tail"] + part["receiving"]
        assert radio == pytest.approx(float(row["upload_energy_j"]), rel=1e-12)
        assert sum(part.values()) == pytest.approx(float(row["energy_j"]), rel=1e-12)
    for row in map(_numbers, rows):
        compute_s, upload_s = row["compute_time_s"], row["upload_time_s"]
        assert compute_s == pytest.approx(0.2 * 1e9 / row["clock_hz"]) and 2e8 <= row["clock_hz"] <= 1e9
        assert row["computing_j"] == pytest.approx(0.02 * (0.2 / compute_s) ** 2)
        assert row["static_j"] == pytest.approx(0.01 * compute_s)
        assert row["radiating_j"] == pytest.approx(row["power_w"] * upload_s / 0.3)
        assert row["circuits_j"] == pytest.approx(0.5 * upload_s)
        assert (row["tail_j"], row["receiving_j"]) == (pytest.approx(0.004), pytest.approx(0.001))
        assert row["time_s"] == compute_s + upload_s <= 1.0 + 1e-12


def _numbers(row):
    return {
        name: float(value) for name, value in row.items() if name not in ("id", "upload_decided_by", "clock_decided_by")
    }


def test_the_printed_model_has_no_columns_of_whole_devices(call):
    call(write("p.json", small_cell()), "--save", "r.csv")
    assert Path("r.csv").read_text().splitlines()[0].endswith("time_s,queue_j")
    plain = call("p.json", "--json")[1]
    assert "clock_hz" not in plain and "tail" not in plain
    said = small_cell(static_power_w=0, amplifier_efficiency=1, circuit_power_w=0, min_power_w=0, tail_energy_j=0)
    assert call(write("p.json", said), "--json")[1] == plain


def test_what_decided_times_and_clocks_is_said(call):
    out = call(write("p.json", call("--example", "modem")[1]))[1]
    assert "tail 78.6 %" in out and "Proposition" not in out
    table = strict_json(call("p.json", "--json")[1])
    decided = {row["id"]: (row["upload_decided_by"], row["clock_decided_by"]) for row in table["rounds"][0]["devices"]}
    assert decided == {
        "kitchen": ("circuits", "static"),
        "cellar": ("full_power", "static"),
        "office": ("circuits", "static"),
        "tablet": ("clock", "deadline"),
        "camera": ("deadline", "fixed"),
    }


# ── For people ───────────────────────────────────────────────────────────────


def test_the_table_names_every_device_of_a_small_fleet_and_says_who_is_left_out(call):
    status, out, _ = call(write("p.json", call("--example")[1]))
    assert status == 0
    for word in ("hall", "roof", "cellar-1", "cellar-2", "street", "yard", "tunnel", "next queue", "3 of 7 devices"):
        assert word in out
    assert "not chosen: hall, cellar-2; not available: yard" in out
    assert "Device 'tunnel' can never be scheduled: computing takes 20.62 s, and the deadline is 20 s." in out
    assert "Objective" in out and "certified" in out


def test_a_device_slower_than_the_deadline_is_no_error(call):
    cell = small_cell(compute_time_s=1.5)
    status, out, err = call(write("p.json", cell))
    assert (status, err) == (0, "")
    assert "No devices scheduled." in out
    assert "Device 'd0' can never be scheduled: computing takes 1.5 s, and the deadline is 1 s." in out
    assert "1 more devices can never be scheduled" in out


@pytest.mark.parametrize("example", ["json", "modem"])
@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_tables_fit_the_terminal(call, monkeypatch, columns, example):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = call(write("p.json", call("--example", example)[1]))[1]
    table = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert len(table) == (11 if example == "json" else 10) and max(map(len, table)) <= columns
    assert all("cellar" in out and name in out for name in ("share", "power"))
    assert "…" not in out or columns == 40


def test_a_large_fleet_is_a_screenful(call):
    draw = np.random.default_rng(0)
    rows = [f"d{k},{gain!r}" for k, gain in enumerate((10 ** draw.uniform(-12, -8, 30_000)).tolist())]
    text = "# payload_bits = 2e4\n# samples = 100\nid,gain\n" + "\n".join(rows)
    status, out, _ = call(write("big.csv", text))
    assert status == 0
    assert len(out.splitlines()) < 35
    assert "of 30,000 devices scheduled" in out and "more that are scheduled" in out


def test_a_long_trace_is_two_screenfuls(call):
    draw = np.random.default_rng(0)
    gains = (10 ** draw.uniform(-13, -10, (40, 60))).tolist()
    rows = [f"{t},d{k},{gains[k][t]}" for t in range(60) for k in range(40)]
    top = "# payload_bits = 2e5\n# samples = 100\n# budget_j = 1\n# bandwidth_hz = 1e5\n"
    status, out, _ = call(write("t.csv", top + "round,id,gain\n" + "\n".join(rows)))
    assert status == 0 and len(out.splitlines()) < 65
    assert "Rounds 0 to 59 of a horizon of 60: 40 devices" in out
    assert "Largest certified gap" in out and "These 20 of 40 devices spent most" in out


def test_ids_cannot_paint_the_terminal(call):
    cell = small_cell()
    cell["devices"][0]["id"] = "[red]x[/red]\x1b[31m"
    cell["devices"][1]["id"] = "y" * 100
    out = call(write("p.json", cell))[1]
    assert "[red]x[/red]·" in out and "\x1b" not in out and "[31m" not in out
    assert "yyy…" in out


def test_next_says_what_to_do(call):
    write("p.json", small_cell())
    assert "The problem of round 1 is in n.json" in call("p.json", "--next", "n.json")[1]
    assert "All 1 rounds are played" in call("p.json", "--rounds", "1", "--next", "n.json")[1]


def test_every_field_is_listed_and_documented(call):
    status, out, _ = call("--fields")
    generate = runpy.run_path(str(ROOT / "docs" / "generated.py"))["on_page_markdown"]
    reference = generate((ROOT / "docs" / "reference" / "scheduling.md").read_text())
    assert status == 0
    for name in (*CELL_FIELDS, *DEVICE_FIELDS):
        assert f"\n{name} " in "\n" + out, name
        assert f"| `{name}` |" in reference, name
    assert all(f"`{name}`" in reference for name in TRACES)


def blocks(kind):
    """The code blocks of one kind in the guide."""
    guide = (ROOT / "docs" / "schedule.md").read_text()
    return [
        textwrap.dedent(found) for found in re.findall(rf"^ *```{kind}\n(.*?)^ *```", guide, re.DOTALL | re.MULTILINE)
    ]


def test_the_files_and_the_program_in_the_guide_work(call):
    as_csv, trace = blocks("csv")
    results = [call(write("p.json", blocks("json")[0]), "--json"), call(write("p.csv", as_csv), "--json")]
    assert results[0] == results[1] and results[0][0] == 0
    assert len(strict_json(call(write("t.csv", trace), "--json")[1])["rounds"]) == 2
    write("problem.json", call("--example")[1])
    exec(compile("\n".join(blocks("python")), "guide", "exec"), {})
    assert call("next.json")[0] == 0


@pytest.mark.parametrize(("block", "example", "columns"), [(0, "json", 100), (-1, "modem", 92)])
def test_the_output_in_the_guide_is_the_real_one(call, monkeypatch, block, example, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = blocks("console")[block].split(".json\n")[-1]
    real = call(write("problem.json", call("--example", example)[1]))[1]
    assert shown.split() == real.split()


# ── Bad input ────────────────────────────────────────────────────────────────


BAD = {
    "gain.json": ('{"payload_bits": 1, "devices": [{"id": "a", "gain": -1}]}', "gain of device 'a' is -1"),
    "gain.csv": ("# payload_bits = 10\nid,gain\na,1\nb,-1\n", "gain of device 'b' is -1.0"),
    "word.json": ('{"bandwith_hz": 1, "devices": [{"id": "a"}]}', "did you mean bandwidth_hz?"),
    "cut.json": ('{"devices": [', "not valid JSON: Expecting value at line 1, column 14"),
    "quote.csv": ('id,gain\n"a,1\n', "cannot be read"),
    "empty.csv": ("", "--example"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_problem_that_cannot_be_read_is_one_sentence(call, name):
    """What the sentences say is tested next to the reader."""
    text, said = BAD[name]
    check_refused(call(write(name, text)), [said])


def check_refused(result, words):
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("kfl: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["Name a problem file"]),
        (["missing.json"], ["Cannot read 'missing.json'", "No such file"]),
        (["."], ["Cannot read '.'", "not a regular file"]),
        (["p.json", "--next", "n.txt"], ["--next is 'n.txt'", ".json or .csv"]),
        (["p.json", "--save", "nowhere/r.json"], ["--save", "'nowhere' does not"]),
        (["p.json", "--bandwidth-hz", "0"], ["bandwidth_hz is 0.0"]),
        (["p.json", "--bandwidth-hz", "nan"], ["bandwidth_hz is nan"]),
        (["p.json", "--scheduler.v", "-1"], ["scheduler.v is -1.0"]),
        (["binary.json"], ["not text in UTF-8"]),
    ],
)
def test_bad_command_lines_are_a_sentence(call, words, said):
    write("p.json", small_cell())
    Path("binary.json").write_bytes(b"\xff\xfe\x00")
    check_refused(call(*words), said)
    assert not Path("n.txt").exists()
