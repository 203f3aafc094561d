"""What the fields of a problem file mean together: units, defaults, two ways to say a thing, and what is missing."""

import math

import numpy as np
import pytest

from kfl.core.errors import ConfigError, KflError
from kfl.scheduling import read_problem, write_problem
from kfl.scheduling.problem_writer import csv_text, json_text, problem_table
from tests.scheduling.problem_texts import device, of, said

INF = math.inf


# ── Where a problem comes from ───────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cell.json", of()),
        ("CELL.JSON", of()),
        ("cell.csv", "id,gain,payload_bits\na,1e-9,1e5\n"),
        ("cell.CSV", "id,gain,payload_bits\na,1e-9,1e5\n"),
        ("cell.txt", of()),
        ("cell.txt", "id,gain,payload_bits\na,1e-9,1e5\n"),
        ("cell", "  \n" + of()),
    ],
)
def test_a_file_is_json_or_csv_by_its_name_and_else_by_its_first_character(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    for source in (path, str(path)):
        assert read_problem(source).payload_bits.tolist() == [1e5]
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_problem(path).ids == ("a",)


def test_a_file_whose_name_says_another_kind_is_read_as_its_name_says(tmp_path):
    (tmp_path / "cell.json").write_text("id,gain,payload_bits\na,1e-9,1e5\n")
    assert said(tmp_path / "cell.json").startswith("This is not valid JSON")
    (tmp_path / "cell.csv").write_text(of())
    assert said(tmp_path / "cell.csv").startswith('\'{"devices"')


@pytest.mark.parametrize(
    "text", [of(), " " + of(), "# payload_bits = 1e5\nid,gain\na,1\n", "id,gain,payload_bits\na,1,1e5"]
)
def test_text_is_told_from_the_name_of_a_file(text):
    assert read_problem(text).payload_bits.tolist() == [1e5]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("", "The problem is empty; kfl schedule --example prints one to start from."),
        (" \n ", "The problem is empty; kfl schedule --example prints one to start from."),
        ("[1]", 'A problem is a JSON object with a list of devices: {"devices": [...]}.'),
        ("# seed = 1", "This CSV has no header line; it begins, for example, with: id,gain,payload_bits."),
        ("no-such-file", "Cannot read 'no-such-file': No such file or directory."),
        ("a\0b", "Cannot read 'a\\x00b': embedded null byte."),
    ],
)
def test_a_source_that_is_no_problem(source, sentence):
    assert said(source) == sentence


def test_a_file_that_is_empty_or_no_text(tmp_path):
    path = tmp_path / "cell.json"
    path.write_text("  \n")
    assert said(path) == f"{path} is empty; kfl schedule --example prints one to start from."
    path.write_bytes(b'{"a": "\xff"}')
    assert said(path) == f"{path} is not text in UTF-8: byte 7 cannot be read."


# ── Rounds and ids ───────────────────────────────────────────────────────────


def test_the_horizon_ends_with_the_file_or_later():
    trace = {"id": "a", "gains": [1, 1, 1], "payload_bits": 1}
    assert read_problem(of(trace, round=2)).rounds == 5
    assert read_problem(of(trace, round=2, rounds=5)).rounds == 5
    assert read_problem(of(trace, round=2, rounds=6)).rounds == 6
    assert said(of(trace, round=2, rounds=4)) == (
        "rounds is 4, but must be 5 or more, because the file describes rounds 2 to 4."
    )
    for rounds in (1, 2):
        assert said(of(trace, round=2, rounds=rounds)) == (
            f"round is 2 and rounds is {rounds}: every round of this horizon has been played; raise rounds to go on."
        )


def test_two_devices_with_one_id_are_numbered():
    rows = [device(id=name) for name in ("x", "a", "y", "a", "a")]
    assert said(of(*rows)) == "Two devices have the id 'a': number 2 and number 4."


def test_top_level_values_of_their_own_type():
    made = read_problem(of(seed=7, hard_budget=True, memory={"next": [1, 2]}, round=3.0, rounds=9.0))
    assert (made.seed, made.hard_budget, made.round, made.rounds) == (7, True, 3, 9)
    assert [type(value) for value in (made.seed, made.hard_budget, made.round, made.rounds)] == [int, bool, int, int]
    assert made.memory["next"].dtype == np.float64 and made.memory["next"].tolist() == [1.0, 2.0]


# ── Two ways to say a thing ──────────────────────────────────────────────────


def test_what_devices_say_and_what_the_top_says():
    """Each in its own way: the top in decibels, a device linear, and the other way round."""
    rows = [{"id": "a", "gain": 0.5, "max_power_w": 0.5}, {"id": "b"}, {"id": "c", "gain_db": -20, "max_power_dbm": 20}]
    made = read_problem(of(*rows, gain_db=-10, max_power_dbm=10, payload_bits=1))
    assert made.gain[0] == pytest.approx([0.5, 0.1, 0.01])
    assert made.max_power_w == pytest.approx([0.5, 0.01, 0.1])
    made = read_problem(of(*rows, gain=0.25, max_power_w=0.25, payload_bits=1))
    assert made.gain[0] == pytest.approx([0.5, 0.25, 0.01])
    assert made.max_power_w == pytest.approx([0.5, 0.25, 0.1])


TWICE = {
    "Device 'a' gives both gain and gain_db; give one of them.": of(device(gain_db=-90)),
    "Device 'b' gives both max_power_w and max_power_dbm; give one of them.": of(
        device(), device(id="b", max_power_w=1, max_power_dbm=30)
    ),
    "Device 'a' gives both spent_j and battery_j; give one of them.": of(device(spent_j=1, battery_j=1, budget_j=2)),
    "Device 'a' gives both compute_energy_j and flops; give one of them.": of(
        device(compute_energy_j=1, flops=1, cpu_hz=1)
    ),
    "The top of the file gives both gain and gain_db; give one of them.": of(device(), gain=1, gain_db=0),
    "The top of the file gives both compute_time_s and flops; give one of them.": of(
        device(), compute_time_s=1, compute_energy_j=1, flops=1, cpu_hz=1
    ),
    "The top of the file gives both min_power_w and min_power_dbm; give one of them.": of(
        device(), min_power_w=0.1, min_power_dbm=1
    ),
}


@pytest.mark.parametrize("sentence", TWICE)
def test_what_is_said_in_two_ways_is_refused(sentence):
    assert said(TWICE[sentence]) == sentence


def test_what_is_said_in_two_ways_in_one_round_of_several_is_refused():
    text = "# payload_bits = 1\nround,id,gain,gain_db,available\n0,a,0.5,-3,yes\n1,a,,,no\n"
    assert said(text) == "Device 'a' gives both gain and gain_db; give one of them."


# ── What is missing ──────────────────────────────────────────────────────────

PLACE = "or compute_time_s and compute_energy_j in place of both."
HEARD = "give gain (linear) or gain_db; 0 is a device that is not heard."
MISSING = [
    (of(device(), {"id": "b", "payload_bits": 1}), f"gain of device 'b' is missing: {HEARD}"),
    (
        of(device(), {"id": "b", "gains": [1, None], "payload_bits": 1}, round=5),
        f"gain of device 'b' in round 6 is missing: {HEARD}",
    ),
    (
        of(device(), {"id": "b", "gains": [1, 1]}),
        "payload_bits of device 'b' is missing: bits to upload in a round; "
        "give it for the device, or at the top for all.",
    ),
    (of(device(flops=1)), f"cpu_hz of device 'a' is missing: give it together with flops, {PLACE}"),
    (of(device(), device(id="b", cpu_hz=1)), f"flops of device 'b' is missing: give it together with cpu_hz, {PLACE}"),
    (of(cpu_hz=1), f"flops of device 'a' is missing: give it together with cpu_hz, {PLACE}"),
    (
        of(device(), device(id="b", compute_time_s=1)),
        "Device 'b' has compute_time_s but no compute_energy_j; give both (0 is allowed).",
    ),
    (
        of(device(), device(id="b", compute_time_s=1, cpu_hz=1)),
        "Device 'b' has compute_time_s but no compute_energy_j; give both (0 is allowed).",
    ),
    (
        of(device(), device(id="b", compute_energy_j=1, cpu_hz=1)),
        "Device 'b' has compute_energy_j but no compute_time_s; give both (0 is allowed).",
    ),
    (
        of(device(), device(id="b", compute_energy_j=1)),
        "Device 'b' has compute_energy_j but no compute_time_s; give both (0 is allowed).",
    ),
    (
        of(device(cpu_hz=1, flops=1, min_cpu_hz=1), device(id="b", min_cpu_hz=1)),
        "Device 'b' has min_cpu_hz but no cpu_hz, the fastest clock; give both.",
    ),
    (
        of(device(), device(id="b", battery_j=1)),
        "Device 'b' has battery_j but no budget_j, which says what it had at the start.",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), MISSING)
def test_what_is_missing_is_named(text, sentence):
    assert said(text) == sentence


def test_who_is_away_needs_no_gain():
    rows = [{"id": "a", "available": False}, {"id": "b", "gains": [1, None], "available": [True, False]}]
    made = read_problem(of(*rows, payload_bits=1))
    assert made.gain.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_time_and_energy_of_which_each_is_said_at_another_place():
    made = read_problem(of(device(compute_time_s=0.5), device(id="b", compute_time_s=0), compute_energy_j=2))
    assert made.compute_time_s.tolist() == [0.5, 0.0] and made.compute_energy_j.tolist() == [2.0, 2.0]
    assert said(of(device(), compute_energy_j=2)) == (
        "Device 'a' has compute_energy_j but no compute_time_s; give both (0 is allowed)."
    )


# ── Processors ───────────────────────────────────────────────────────────────


def test_a_device_computes_what_it_says_or_what_its_clock_says():
    """T = F / (f n), E = κ F f² / n; a device without either computes nothing."""
    rows = [
        device(flops=8e9, cpu_hz=1e9, flops_per_cycle=4, power_coefficient=1e-27),
        device(id="b", compute_time_s=0.5, compute_energy_j=0.25, cpu_hz=1e9),
        device(id="c"),
    ]
    made = read_problem(of(*rows))
    assert made.compute_time_s == pytest.approx([2.0, 0.5, 0.0])
    assert made.compute_energy_j == pytest.approx([2.0, 0.25, 0.0])
    assert made.device.is_paper_model


def test_a_clock_at_the_top_is_no_claim_about_devices_that_say_their_times():
    made = read_problem(of(device(compute_time_s=0.5, compute_energy_j=0.1), cpu_hz=1e9, min_cpu_hz=5e8))
    assert made.compute_time_s.tolist() == [0.5]
    assert made.device.cpu_hz.tolist() == [1e9] and made.device.min_cpu_hz.tolist() == [5e8]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"flops": 1e30, "cpu_hz": 1e-30},
            "compute_time_s of device 'b', from its flops and cpu_hz, is 2.5e+59, but must be 0, or of a size between "
            "1e-45 and 1e+45.",
        ),
        (
            {"flops": 1e30, "cpu_hz": 1e40},
            "compute_energy_j of device 'b', from its flops and cpu_hz, is 2.5000000000000004e+82, but must be 0, or "
            "of a size between 1e-45 and 1e+45.",
        ),
        (
            {"flops": 1e45, "cpu_hz": 1e-45, "flops_per_cycle": 1e-45},
            "compute_time_s of device 'b', from its flops and cpu_hz, is 1e+135, but must be 0, or of "
            "a size between 1e-45 and 1e+45.",
        ),
        (
            {"flops": 1.0, "cpu_hz": 1.0, "min_cpu_hz": 1.5, "power_coefficient": 1.0},
            "min_cpu_hz of device 'b' is 1.5, but must be at most its cpu_hz, 1.",
        ),
        ({"min_power_w": 1.0}, "min_power_w of device 'b' is 1.0, but must be below its max_power_w, 1."),
        ({"budget_j": 1.0, "battery_j": 1.5}, "battery_j of device 'b' is 1.5, but must be at most its budget_j, 1."),
    ],
)
def test_what_follows_of_a_device_must_be_possible_too(fields, sentence):
    with pytest.raises(ConfigError) as refused:
        read_problem(of(device(), device(id="b", **fields)))
    assert str(refused.value) == sentence


def test_who_says_its_times_is_not_asked_what_the_top_would_make_of_them():
    """The top's operations would cost less than any cell has; no device computes them."""
    row = device(compute_time_s=0.5, compute_energy_j=0.25)
    made = read_problem(of(row, flops=1, cpu_hz=1, power_coefficient=1e-45))
    assert (made.compute_time_s.tolist(), made.compute_energy_j.tolist()) == ([0.5], [0.25])


def test_limits_may_meet():
    """The slowest clock may be the fastest, the battery may be full; a power range needs a least power to be one."""
    made = read_problem(of(device(flops=1, cpu_hz=1e9, min_cpu_hz=1e9, budget_j=2, battery_j=2, max_power_w=0)))
    assert made.device.is_paper_model and made.spent_j.tolist() == [0.0] and made.max_power_w.tolist() == [0.0]


def test_whole_devices_beside_printed_ones():
    """Devices with a clock and without; who says no slowest clock has a fixed one."""
    rows = [
        device(flops=1e9, cpu_hz=1e9, min_cpu_hz=2e8),
        device(id="b", flops=1e9, cpu_hz=5e8),
        device(id="c", static_power_w=0.5, min_power_dbm=0, tail_energy_j=3),
    ]
    made = read_problem(of(*rows, receive_energy_j=2)).device
    np.testing.assert_array_equal(made.cpu_hz, [1e9, 5e8, np.nan])
    np.testing.assert_array_equal(made.min_cpu_hz, [2e8, 5e8, np.nan])
    assert made.static_power_w.tolist() == [0, 0, 0.5] and made.tail_j.tolist() == [0, 0, 3]
    assert made.min_power_w == pytest.approx([0, 0, 1e-3])
    assert made.receiving_j.tolist() == [2, 2, 2] and made.amplifier_efficiency.tolist() == [1, 1, 1]
    top = read_problem(of(*rows, min_cpu_hz=1e8)).device
    np.testing.assert_array_equal(top.min_cpu_hz, [2e8, 1e8, np.nan])


# ── Budgets and notes ────────────────────────────────────────────────────────


def test_budgets_and_what_was_spent_of_them():
    rows = [device(budget_j=4, battery_j=1), device(id="b", spent_j=0.5), device(id="c", battery_j=3)]
    made = read_problem(of(*rows, budget_j=3, rounds=2))
    assert made.budget_j.tolist() == [4, 3, 3] and made.spent_j.tolist() == [3, 0.5, 0]
    made = read_problem(of(device(spent_j=0.25), device(id="b", budget_j=2), battery_j=1, budget_j=5, rounds=2))
    assert made.spent_j.tolist() == [0.25, 1.0] and made.budget_j.tolist() == [5, 2]
    assert read_problem(of(device(spent_j=0.25))).budget_j.tolist() == [INF]


ONE_ROUND = "rounds is not given, so every budget_j is taken to be for this one round."


def test_a_budget_without_a_horizon_is_noted():
    assert read_problem(of(device(budget_j=1), device(id="b"))).notes == (ONE_ROUND,)
    assert read_problem(of(budget_j=1)).notes == (ONE_ROUND,)
    assert read_problem(of(budget_j=1, rounds=1)).notes == ()
    assert read_problem(of({"id": "a", "gains": [1, 1], "payload_bits": 1}, budget_j=1)).notes == ()
    assert read_problem(of()).notes == ()


@pytest.mark.parametrize(
    ("watts", "note"),
    [
        ([10.0, 0.2], None),
        (
            [0.2, 10.5],
            "The transmit power of device d1 is 10.5 W, more than any battery device has: if 10.5 dBm were meant, "
            "give max_power_dbm.",
        ),
        ([20.0, 30.0], "The transmit power of device d0 and 1 more is 20 W"),
        ([0.1, 20.0, 30.0, 23.0], "The transmit power of device d1 and 2 more is 20 W"),
    ],
)
def test_powers_above_ten_watts_are_questioned(watts, note):
    notes = read_problem(of(*[device(id=f"d{k}", max_power_w=power) for k, power in enumerate(watts)])).notes
    assert [one[: len(note or "")] for one in notes] == ([note] if note else [])


# ── Writing ──────────────────────────────────────────────────────────────────


def test_a_problem_is_written_as_its_name_says(tmp_path):
    made = read_problem(of(device(budget_j=1), device(id="b"), rounds=3))
    for name, first in (("p.json", "{"), ("p.csv", "#"), ("P.CSV", "#"), ("p", "{")):
        write_problem(made, tmp_path / name)
        assert (tmp_path / name).read_text().startswith(first)
        write_problem(made, str(tmp_path / name))
    with pytest.raises(KflError, match=r"^Cannot write '.*nowhere.p.json': No such file or directory\.$"):
        write_problem(made, tmp_path / "nowhere" / "p.json")


def test_the_table_of_a_problem_spells_everything_out():
    made = read_problem(of(device(budget_j=1), device(id="b", available=False), rounds=3, round=1, memory={"m": [1]}))
    top, rows = problem_table(made)
    assert top == {
        "bandwidth_hz": 5e6,
        "noise_dbm_per_hz": -174.0,
        "rounds": 3,
        "round": 1,
        "seed": 0,
        "hard_budget": False,
        "memory": {"m": [1.0]},
    }
    numbers = {"samples": 1.0, "payload_bits": 1e5, "deadline_s": 1.0, "max_power_w": 1.0}
    numbers |= {"compute_time_s": 0.0, "compute_energy_j": 0.0, "spent_j": 0.0, "queue_j": 0.0}
    assert rows == [
        {"id": "a", "gain": 1e-9, "available": True, **numbers, "budget_j": 1.0},
        {"id": "b", "gain": 1e-9, "available": False, **numbers},
    ]
    assert "memory" not in problem_table(read_problem(of()))[0]


def test_whole_devices_are_written_with_clocks_where_they_have_one():
    made = read_problem(of(device(flops=1e9, cpu_hz=1e9, min_cpu_hz=5e8), device(id="b", static_power_w=1)))
    _, (first, second) = problem_table(made)
    assert (first["cpu_hz"], first["min_cpu_hz"], first["static_power_w"]) == (1e9, 5e8, 0.0)
    assert "cpu_hz" not in second and "min_cpu_hz" not in second and second["static_power_w"] == 1.0
    assert (second["amplifier_efficiency"], second["min_power_w"]) == (1.0, 0.0)
    assert not {"cpu_hz", "static_power_w"} & set(problem_table(read_problem(of()))[1][0])


def test_csv_of_one_round_and_of_several():
    once = read_problem(of(device(budget_j=1), device(id="b,c", available=False), rounds=3, round=2))
    text = csv_text(*problem_table(once), once.round)
    lines = text.splitlines()
    assert "\r" not in text
    assert lines[:6] == [
        "# bandwidth_hz = 5000000.0",
        "# noise_dbm_per_hz = -174.0",
        "# rounds = 3",
        "# round = 2",
        "# seed = 0",
        "# hard_budget = false",
    ]
    assert lines[6].startswith("id,gain,payload_bits,available,samples") and lines[6].endswith(
        "budget_j,spent_j,queue_j"
    )
    assert lines[7].startswith("a,1e-09,100000.0,true,1.0") and lines[7].endswith("1.0,0.0,0.0")
    assert lines[8].startswith('"b,c",1e-09,100000.0,false') and lines[8].endswith(",,0.0,0.0")
    trace = read_problem(
        of(
            {"id": "a", "gains": [0.5, 0.25], "available": [True, False]},
            {"id": "b", "gain": 1},
            payload_bits=8,
            round=2,
        )
    )
    lines = csv_text(*problem_table(trace), trace.round).splitlines()
    assert not any(line.startswith("# round =") for line in lines)
    assert [line.split(",")[:5] for line in lines[5:]] == [
        ["round", "id", "gain", "available", "payload_bits"],
        ["2", "a", "0.5", "true", "8.0"],
        ["2", "b", "1.0", "true", "8.0"],
        ["3", "a", "0.25", "false", ""],
        ["3", "b", "1.0", "true", ""],
    ]
    alone = read_problem(of({"id": "a", "gains": [0.5, 0.25], "payload_bits": 8}))
    assert read_problem(csv_text(*problem_table(alone), 0)).gain.tolist() == [[0.5], [0.25]]


def test_json_is_laid_out_for_people():
    """Objects in lists, and names in lists, a line each; numbers next to each other; nothing of NaN."""
    value = {"top": {"a": [1, 2]}, "names": ["x", "y"], "inside": {"rows": [{"k": 1}], "n": 2}, "none": {}, "no": []}
    assert json_text(value) == (
        '{\n  "top": {"a": [1, 2]},\n  "names": [\n    "x",\n    "y"\n  ],\n  "inside": {\n    "rows": [\n'
        '      {"k": 1}\n    ],\n    "n": 2\n  },\n  "none": {},\n  "no": []\n}\n'
    )
    assert json_text({"a": [{"b": "ä"}]}, depth=1) == '{\n    "a": [\n      {"b": "ä"}\n    ]\n  }'
    rows = {"rounds": [{"n": 1, "devices": [{"k": 1}, {"k": 2}]}, {"n": 2, "devices": []}]}
    assert json_text(rows) == (
        '{\n  "rounds": [\n    {\n      "n": 1,\n      "devices": [\n'
        '        {"k": 1},\n        {"k": 2}\n      ]\n    },\n    {"n": 2, "devices": []}\n  ]\n}\n'
    )
    assert json_text([{"a": 1}]) == '[\n  {"a": 1}\n]\n'
    assert json_text([1, 2]) == "[1, 2]\n" and json_text({}) == "{}\n"
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": math.nan})
