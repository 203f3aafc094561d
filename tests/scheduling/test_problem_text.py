"""What a problem file may look like, and each sentence about one that cannot be read: CSV and JSON, field by field."""

import math

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.scheduling import read_problem
from kfl.scheduling.problem_schema import CELL_FIELDS, DEVICE_FIELDS
from tests.scheduling.problem_texts import device, of, said

INF = math.inf


# ── CSV ──────────────────────────────────────────────────────────────────────

READABLE = {
    "line ends of an old Macintosh": "id,gain,payload_bits\ra,1e-9,10\rb,1e-8,20\r",
    "empty lines between the rows": "\n\nid,gain,payload_bits\n\na,1e-9,10\n\n  \n,,\nb,1e-8,20\n\n",
    "cells with spaces": " id , gain , payload_bits \n a , 1e-9 , 10 \n b ,1e-8, 20\n",
    "comments": "# a word\n#\n# measured: on a roof\nid,gain,payload_bits\na,1e-9,10\nb,1e-8,20\n",
    "quotes of a spreadsheet": '"# a word",,\n,,\nid,gain,payload_bits\n"a",1e-9,"10"\nb,1e-8,20\n',
    "columns in another order": "payload_bits,gain,id\n10,1e-9,a\n20,1e-8,b\n",
}


@pytest.mark.parametrize("case", READABLE)
def test_a_csv_is_read_whatever_stands_around_its_cells(case):
    problem = read_problem(READABLE[case] + "\n")
    assert problem.ids == ("a", "b")
    assert problem.gain.tolist() == [[1e-9, 1e-8]]
    assert problem.payload_bits.tolist() == [10, 20]
    assert problem.notes == ()


def test_values_at_the_top_of_a_csv():
    lines = [
        "# bandwidth_hz = +2e6",  # no JSON, but a number
        "#noise_dbm_per_hz=-170",
        "##  rounds  =  40 ",
        "# hard_budget = TRUE",
        "# seed = ",  # left empty: the default
        "# deadline_s = 1_0",
        "# available = False",
        '# memory = {"next": [1, 2.5]}',
    ]
    problem = read_problem("\n".join(lines) + "\nid,gain,payload_bits\na,1e-9,10\n")
    assert (problem.bandwidth_hz, problem.noise_dbm_per_hz, problem.rounds) == (2e6, -170.0, 40)
    assert (problem.hard_budget, problem.seed) == (True, 0)
    assert problem.deadline_s.tolist() == [10.0]
    assert problem.available.tolist() == [[False]]
    assert {name: values.tolist() for name, values in problem.memory.items()} == {"next": [1.0, 2.5]}


@pytest.mark.parametrize(
    ("word", "there"), [("true", 1), ("Yes", 1), ("1", 1), ("FALSE", 0), ("no", 0), ("0", 0), ("", 1)]
)
def test_words_for_true_and_false(word, there):
    assert read_problem(f"id,gain,payload_bits,available\na,1,1,{word}\n").available.tolist() == [[bool(there)]]


HEAD = "id,gain,payload_bits\n"
BAD_CSV = {
    "# only = comments\n# and a word\n".replace("only", "seed"): "This CSV has no header line; it begins, for example, "
    "with: id,gain,payload_bits.",
    f"{HEAD}a,1,1\n ,1,1\n": "id in row 2 below the header is empty: a text or an integer.",
    f"# seed = 1\n\n{HEAD}a,1,1\nb,1\n": "Line 5 of the CSV has 2 values, but the header has 3.",
    f"{HEAD}a,1,1,\n": "Line 2 of the CSV has 4 values, but the header has 3.",
    f'# seed = 1\n{HEAD}a,1,1\n"b"c,1,1\n': "Line 4 of the CSV cannot be read: ',' expected after '\"'.",
    f"{HEAD},,\n\n": "The CSV has a header but no rows; a problem needs at least one device.",
    f"# seed = 1\n# seed = 1\n{HEAD}a,1,1\n": "'seed' is given twice at the top of the CSV.",
    "# sede = 1\nid\na\n": "'sede' at the top is not a field of a problem; did you mean seed?",
    "# zzzzzzz = 1\nid\na\n": "'zzzzzzz' at the top is not a field of a problem; kfl schedule --fields lists them all.",
    "# sede = 1\nid;gain\na;1\n": "'sede' at the top is not a field of a problem; did you mean seed?",
    "id;gain\na;1\n": "The columns of the CSV must be separated by commas (and decimals written with a point).",
    "id\tgain\na\t1\n": "The columns of the CSV must be separated by commas (and decimals written with a point).",
    "id,gain;x\na,1\n": "'gain;x' in the header of the CSV is not a field of a problem; did you mean gain?",
    "id,gain,gain\na,1,1\n": "The column 'gain' stands twice in the header of the CSV.",
    "gain\n1\n": "The CSV has no column id, the device's name.",
    f"{HEAD}a,1,1\nb,one,1\n": "gain of device 'b' is 'one', but must be a number from 0 to 1: a channel does not "
    "amplify.",
    "id,gain,payload_bits,available\na,1,1,maybe\n": "available of device 'a' is 'maybe', but must be true or false.",
    # Traces
    "# round = 3\nid,round,gain,payload_bits\na,2,1,1\n": "round is 3 at the top, but the first round in the column is "
    "2.",
    "id,round,gain,payload_bits\na,0,1,1\nb,,1,1\n": "round of device 'b', row 2 below the header, is '', but must be "
    "an integer, 0 or more.",
    "id,round,gain,payload_bits\na,0,1,1\na,1,1,1\na,-1,1,1\n": "round of device 'a', row 3 below the header, is -1.0, "
    "but must be an integer, 0 or more.",
    "id,round,gain,payload_bits\na,7,1,1\na,8,1,1\na,11,1,1\na,20,1,1\n": "The column round jumps from 8 to 11; rounds "
    "must follow each other.",
    "id,round,gain,payload_bits\na,7,1,1\nb,7,1,1\na,8,1,1\nb,8,1,1\nb,8,1,1\n": "Two rows have the id 'b' in round 8.",
    "id,round,gain,payload_bits\na,7,1,1\nb,7,1,5\na,8,1,\nb,8,1,6\n": "payload_bits of device 'b' is 5 and in round 8 "
    "6; only gain, gain_db, available, harvest_j may change from round to round.",
    "id,round,gain,payload_bits\na,7,1,1\nb,7,1,1\nc,7,1,1\nb,8,1,1\nb,8,1,1\n": "Two rows have the id 'b' in round 8.",
    "id,round,gain,payload_bits\na,7,1,5\na,8,1,nan\n": "payload_bits of device 'a' is 5 and in round 8 nan; only "
    "gain, gain_db, available, harvest_j may change from round to round.",
    "id,round,gain,payload_bits\na,7,1,nan\na,8,1,5\n": "payload_bits of device 'a' is nan and in round 8 5; only "
    "gain, gain_db, available, harvest_j may change from round to round.",
    "id,round,gain,payload_bits\na,7,1,nan\na,8,1,nan\n": "payload_bits of device 'a' is nan, but must be a finite "
    "number, 0 or more.",
    "id,round,gain,payload_bits\na,7,1,1\na,8,2,1\n": "gain of device 'a' in round 8 is 2.0, but must be a number from "
    "0 to 1: a channel does not amplify.",
    "id,round,gain,payload_bits\na,7,1,1\nb,7,1,1\na,8,1,1\nb,8,,1\n": "gain of device 'b' in round 8 is missing: give "
    "gain (linear) or gain_db; 0 is a device that is not heard.",
}


@pytest.mark.parametrize("text", BAD_CSV)
def test_the_sentence_about_a_csv(text):
    assert said(text) == BAD_CSV[text]


def test_rows_of_a_trace_in_any_order():
    """Row by row: what is given in any row of a device holds for it; where it has no row it is away."""
    text = "round,id,gain,available,payload_bits,samples\n"
    text += "8,b,0.4,,,\n7,a,0.1,,5,\n9,a,0.3,,,3\n7,b,0.2,no,,\n9,b,0.6,yes,7,4\n"
    problem = read_problem(text)
    assert (problem.ids, problem.round, problem.rounds, problem.described) == (("b", "a"), 7, 10, 3)
    assert problem.gain.tolist() == [[0.2, 0.1], [0.4, 0.0], [0.6, 0.3]]
    assert problem.available.tolist() == [[False, True], [True, False], [True, True]]
    assert problem.payload_bits.tolist() == [7, 5]
    assert problem.samples.tolist() == [4, 3]
    assert problem.notes == ("A device without a row in a round is not available in it: 1 times here.",)


def test_a_trace_without_gaps_has_no_note_and_what_the_top_says_of_availability_holds():
    text = "# available = false\n# payload_bits = 1\nround,id,gain,available\n0,a,1,\n0,b,1,true\n1,a,1,true\n"
    full = read_problem(text + "1,b,1,\n")
    assert full.available.tolist() == [[False, True], [True, False]] and full.notes == ()
    gap = read_problem(text)
    assert gap.available.tolist() == [[False, True], [True, False]] and len(gap.notes) == 1
    alone = read_problem("# available = false\n# payload_bits = 1\nround,id,gain\n0,a,1\n1,a,1\n1,b,1\n")
    assert alone.available.tolist() == [[False, False], [False, False]]


def test_a_trace_of_more_devices_than_rounds_with_gaps():
    """What a device does not say, and what no row says, is what the top says, or the default."""
    text = "# gain = 0.25\n# payload_bits = 1\nround,id,gain,gain_db,samples\n"
    text += "0,a,0.5,,3\n0,b,,-10,\n0,c,,,\n1,a,,,3\n"
    problem = read_problem(text)
    assert problem.ids == ("a", "b", "c")
    assert problem.gain == pytest.approx(np.array([[0.5, 0.1, 0.25], [0.25, 0.25, 0.25]]))
    assert problem.available.tolist() == [[True, True, True], [True, False, False]]
    assert problem.samples.tolist() == [3, 1, 1]
    assert problem.notes == ("A device without a row in a round is not available in it: 2 times here.",)


def test_the_round_at_the_top_of_a_trace_may_be_said_twice():
    problem = read_problem("# round = 7\n# rounds = 50\nid,round,gain,payload_bits\na,7,1,1\na,8,1,1\n")
    assert (problem.round, problem.rounds, problem.described) == (7, 50, 2)


# ── JSON ─────────────────────────────────────────────────────────────────────

BAD_JSON = {
    "[]": 'A problem is a JSON object with a list of devices: {"devices": [...]}.',
    '{"device": []}': "'device' at the top is not a field of a problem; did you mean devices?",
    '{"seed": 1}': "devices is missing: a list with one object for each device.",
    '{"devices": 7}': "devices is 7, but must be a list with one object for each device.",
    '{"devices": {}}': "devices is {}, but must be a list with one object for each device.",
    '{"devices": {"a": 1}}': "devices is an object, but must be a list with one object for each device.",
    '{"devices": []}': "devices is an empty list; a problem needs at least one device.",
    '{"devices": [{"id": "a"}, [1, 2, 3, 4]]}': "device number 2 is [1, 2, 3, 4], but must be an object with fields "
    "such as id and gain.",
    '{"devices": [[1, 2, 3, 4, 5]]}': "device number 1 is a list of 5, but must be an object with fields such as id "
    "and gain.",
    '{"devices": [{"id": "a"}, {"gain": 1}]}': "id of device number 2 is missing: a text or an integer.",
    '{"devices": [{"name": "a"}]}': "'name' of device number 1 is not a field of a problem; did you mean id?",
    '{"devices": [{"id": " "}]}': "id of device number 1 is ' ', but must be a text or an integer.",
    '{"devices": [{"id": true}]}': "id of device number 1 is True, but must be a text or an integer.",
    '{"devices": [{"id": "a"}, {"id": "b", "gan": 1}]}': "'gan' of device 'b' is not a field of a problem; did you "
    "mean gain?",
    '{"seed": 1, "seed": 1, "devices": []}': "'seed' is given twice.",
    '{"devices": [{"id": "a", "gain": 1, "samples": 1, "samples": 2}]}': "'samples' of device 'a' is given twice.",
    '{"devices": [' + "[" * 100_000: "This is not a problem: its JSON is nested too deeply.",
    '{"seed": ' + "1" * 5000 + "}": "This JSON cannot be read: a number in it has thousands of digits.",
    # Traces
    of(device(), {"id": "b", "gains": 5}): "gains of device 'b' is 5, but must be a list with one value per round.",
    of({"id": "b", "gains": []}): "gains of device 'b' is [], but must be a list with one value per round.",
    of(device(available=[])): "available of device 'a' is [], but must be a list with one value per round.",
    of({"id": "b", "gains": [1, 1]}, {"id": "c", "gains": None, "gains_db": [0]}): "gains_db of device 'c' has 1 "
    "entries, but must have 2, as many as gains of device 'b' has: one per round.",
    of({"id": "b", "gains": [1, 1], "gain": 1}): "Device 'b' gives both gain and gains; give one of them.",
    of({"id": "b", "gains": [1, 1], "gain_db": 0}): "Device 'b' gives both gain and gain_db; give one of them.",
    of(
        device(), {"id": "b", "gains": [1, "x"]}
    ): "gain of device 'b' in round 1 is 'x', but must be a number from 0 to 1: a channel does not amplify.",
    of(
        {"id": "b", "gains": [1, 1], "available": [True, 0]}
    ): "available of device 'b' in round 1 is 0, but must be true or false.",
    of(device(samples=10**400)): "samples of device 'a' is inf, but must be a finite number, 0 or more.",
}


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: text[:40])
def test_the_sentence_about_a_json(text):
    assert said(text) == BAD_JSON[text]


def test_traces_in_json():
    """A list in place of one value; what is given once holds for every round; null is not given."""
    problem = read_problem(
        of(
            {"id": 7, "gains": [0.1, 0.2, None], "available": [True, True, False]},
            {"id": " b ", "gain": 0.5, "available": None, "samples": None},
            {"id": "c", "gains_db": [-10, -20, -30], "gains": None, "available": False},
            payload_bits=1,
            round=4,
        )
    )
    assert problem.ids == ("7", "b", "c")
    assert problem.gain == pytest.approx(np.array([[0.1, 0.5, 0.1], [0.2, 0.5, 0.01], [0.0, 0.5, 0.001]]))
    assert problem.available.tolist() == [[True, True, False], [True, True, False], [False, True, False]]
    assert (problem.round, problem.rounds) == (4, 7)


# ── Fields ───────────────────────────────────────────────────────────────────


def above(value):
    return math.nextafter(value, INF)


def below(value):
    return math.nextafter(value, -INF)


ANY = ([0.0, 1e-45, 1e45], [-1e-45, below(1e-45), above(1e45)])
POSITIVE = ([1e-45, 1e45], [0.0, -1.0, below(1e-45), above(1e45)])
DECIBELS = ([-400.0, 0.0, 400.0], [below(-400.0), above(400.0)])
WATTS = ([0.0, 1e4], [-1e-45, above(1e4)])
JOULES = ([0.0, 1e6], [-1e-45, above(1e6)])
STATE = ([0.0, 5e-324, 1e300], [-5e-324])
RANGES = {
    "bandwidth_hz": POSITIVE,
    "noise_dbm_per_hz": DECIBELS,
    "rounds": ([1, 1.0, 10**12], [0, 1.5, 10**12 + 1, -1]),
    "round": ([0, 0.0, 10**12 - 1], [0.5, 10**12 + 1, -1]),
    "resource_blocks": ([1, 9.0, 10**9], [0, 1.5, 10**9 + 1, -1]),
    "battery_capacity_j": POSITIVE,
    "seed": ([0, 3.0, 2**63], [0.5, 2**63 + 2048, -1]),
    "gain": ([0.0, 1e-45, 1.0], [-1e-45, below(1e-45), above(1.0)]),
    "gain_db": ([-400.0, 0.0], [below(-400.0), 1e-9]),
    "payload_bits": ANY,
    "samples": ANY,
    "deadline_s": POSITIVE,
    "max_power_w": ANY,
    "max_power_dbm": DECIBELS,
    "compute_time_s": ANY,
    "compute_energy_j": ANY,
    "flops": ANY,
    "cpu_hz": POSITIVE,
    "flops_per_cycle": POSITIVE,
    "power_coefficient": ANY,
    "min_cpu_hz": POSITIVE,
    "static_power_w": WATTS,
    "amplifier_efficiency": ([1e-45, 1.0], [0.0, above(1.0)]),
    "circuit_power_w": WATTS,
    "min_power_w": ([0.0, 1e-45, below(1.0)], [-1e-45, below(1e-45), above(1e45)]),
    "min_power_dbm": ([-400.0, 29.0], [below(-400.0), above(400.0)]),
    "tail_energy_j": JOULES,
    "receive_energy_j": JOULES,
    "budget_j": ([1e-45, 1e45], [0.0, -1.0, above(1e45)]),
    "spent_j": STATE,
    "battery_j": ([0.0, 1e-45, 2.0], [-1e-45, below(1e-45), above(1e45)]),
    "queue_j": STATE,
}
NEEDS = {
    "gain": {"gain": None},
    "gain_db": {"gain": None},
    "compute_time_s": {"compute_energy_j": 1.0},
    "compute_energy_j": {"compute_time_s": 1.0},
    "flops": {"cpu_hz": 1.0, "flops_per_cycle": 1.0, "power_coefficient": 1.0},
    "cpu_hz": {"flops": 0.0},
    "flops_per_cycle": {"flops": 0.0, "cpu_hz": 1.0},
    "power_coefficient": {"flops": 0.0, "cpu_hz": 1.0},
    "min_cpu_hz": {"flops": 0.0, "cpu_hz": 1e45},
    "battery_j": {"budget_j": 2.0},
}


def test_every_number_of_a_file_has_its_range_here():
    words = {"id", "available", "hard_budget", "memory"} | {"charge_j", "harvest_j"}  # these need a battery
    assert set(RANGES) == {*CELL_FIELDS, *DEVICE_FIELDS} - words


@pytest.mark.parametrize("field", RANGES)
def test_the_last_value_that_works_is_taken_and_the_next_refused(field):
    """At the top, and of a device."""
    taken, refused = RANGES[field]
    for value in taken:
        base = device(**NEEDS.get(field, {}))
        if field in DEVICE_FIELDS:
            read_problem(of({**base, field: value}))
        read_problem(of({name: one for name, one in base.items() if name != field}, **{field: value}), rounds=10**12)
    for value in refused:
        base = device(**NEEDS.get(field, {}))
        if field in DEVICE_FIELDS:
            with pytest.raises(ConfigError) as problem:
                read_problem(of({**base, field: value}))
            assert problem.value.field == f"{field} of device 'a'"
        with pytest.raises(ConfigError) as problem:
            read_problem(of({name: one for name, one in base.items() if name != field}, **{field: value}))
        assert problem.value.field == field


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        ({"seed": 1.5}, "seed is 1.5, but must be an integer, 0 or more."),
        ({"seed": 10**400}, "seed is inf, but must be an integer, 0 or more."),
        ({"bandwidth_hz": 1e46}, "bandwidth_hz is 1e+46, but must be 0, or of a size between 1e-45 and 1e+45."),
        ({"bandwidth_hz": 10**46}, f"bandwidth_hz is {10**46}, but must be 0, or of a size between 1e-45 and 1e+45."),
        ({"hard_budget": 1}, "hard_budget is 1, but must be true or false."),
        ({"available": "yes"}, "available is 'yes', but must be true or false."),
        ({"samples": True}, "samples is True, but must be a finite number, 0 or more."),
        ({"samples": [1]}, "samples is [1], but must be a finite number, 0 or more."),
        ({"spent_j": -1e300}, "spent_j is -1e+300, but must be a finite number, 0 or more."),
        ({"memory": [1]}, "memory is [1], but must be an object of lists of numbers."),
        ({"memory": {"next": 1}}, "memory.next is 1, but must be a list of finite numbers."),
        ({"memory": {"next": [1, True]}}, "memory.next is [1, True], but must be a list of finite numbers."),
        ({"memory": {"next": [1, "x"]}}, "memory.next is [1, 'x'], but must be a list of finite numbers."),
        ({"memory": {"next": [10**400, 1]}}, None),
        ({"id": "a"}, "'id' at the top is not a field of a problem; kfl schedule --fields lists them all."),
    ],
)
def test_the_sentence_about_a_value_at_the_top(top, sentence):
    found = said(of(**top))
    assert found == sentence if sentence else found.startswith("memory.next is [1000")


def test_the_sentence_about_a_value_of_a_device():
    of_device = {
        "payload_bits": (
            1e46,
            "payload_bits of device 'a' is 1e+46, but must be 0, or of a size between 1e-45 and 1e+45.",
        ),
        "queue_j": (-1e300, "queue_j of device 'a' is -1e+300, but must be a finite number, 0 or more."),
    }
    for name, (value, sentence) in of_device.items():
        assert said(of(device(**{name: value}))) == sentence


def test_fields_that_are_left_out_or_null_have_the_documented_defaults():
    for problem in (
        read_problem(of()),
        read_problem(of(**dict.fromkeys(["bandwidth_hz", "seed", "samples", "memory"]))),
    ):
        assert (problem.bandwidth_hz, problem.noise_dbm_per_hz) == (5e6, -174.0)
        assert (problem.rounds, problem.round, problem.seed, problem.hard_budget) == (1, 0, 0, False)
        assert problem.available.tolist() == [[True]]
        for name, value in (("samples", 1.0), ("deadline_s", 1.0), ("max_power_w", 1.0), ("budget_j", INF)):
            assert getattr(problem, name).tolist() == [pytest.approx(value)], name
        for name in ("compute_time_s", "compute_energy_j", "spent_j", "queue_j"):
            assert getattr(problem, name).tolist() == [0.0], name
        assert problem.device.is_paper_model and not problem.memory and problem.notes == ()


@pytest.mark.parametrize(("word", "field"), [("h", "gain"), ("bits", "payload_bits"), ("battery", "battery_j")])
def test_what_people_call_a_field_is_understood_as_a_question(word, field):
    assert said(of(device(**{word: 1}))) == f"'{word}' of device 'a' is not a field of a problem; did you mean {field}?"
