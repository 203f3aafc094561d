"""Problem files: JSON and CSV mean the same, every wrong value is a sentence, what is written is what is read."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import KflError
from kfl.core.units import dbm_to_watt
from kfl.scheduling import Dual, Lyapunov, RoundRobin, Uniform, read_problem, schedule, write_problem
from kfl.scheduling.problem_schema import CELL_FIELDS, DEVICE_FIELDS
from kfl.scheduling.status import OUTCOMES, describe
from kfl.wireless.costs import uplink_rate

ARRAYS = (
    "gain",
    "available",
    "samples",
    "payload_bits",
    "deadline_s",
    "max_power_w",
    "compute_time_s",
    "compute_energy_j",
    "budget_j",
    "spent_j",
    "queue_j",
)
SINGLE = ("ids", "bandwidth_hz", "noise_dbm_per_hz", "rounds", "round", "seed", "hard_budget")


def assert_same(one, other):
    assert {name: getattr(one, name) for name in SINGLE} == {name: getattr(other, name) for name in SINGLE}
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.device.is_paper_model == other.device.is_paper_model
    if not one.device.is_paper_model:
        for field in fields(one.device):
            mine, theirs = getattr(one.device, field.name), getattr(other.device, field.name)
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    assert {k: v.tolist() for k, v in one.memory.items()} == {k: v.tolist() for k, v in other.memory.items()}


def one_device(**fields):
    return json.dumps({"devices": [{"id": "a", "gain": 1e-9, "payload_bits": 1e5, **fields}]})


def trace(rounds=12, devices=9, seed=3):
    """A cell where the band is scarce and budgets bind, as a JSON table."""
    draw = np.random.default_rng(seed)
    gains = 10 ** draw.uniform(-13.5, -10, (devices, rounds))
    return {
        "bandwidth_hz": 2e5,
        "rounds": rounds,
        "payload_bits": 2e5,
        "compute_time_s": 0.3,
        "compute_energy_j": 0.05,
        "devices": [
            {
                "id": f"m{k}",
                "gains": gains[k].tolist(),
                "available": draw.random(rounds).__gt__(0.2).tolist(),
                "samples": int(draw.integers(100, 900)),
                "budget_j": float(draw.uniform(0.2, 1.0)),
                "max_power_w": 0.5,
            }
            for k in range(devices)
        ],
    }


# ── Meaning ──────────────────────────────────────────────────────────────────


def test_what_a_device_says_comes_before_what_the_top_says():
    text = """# payload_bits = 10
# max_power_dbm = 23
# flops = 1e9
# cpu_hz = 1e9
# deadline_s = 3
id,gain,payload_bits,max_power_w,compute_time_s,compute_energy_j,deadline_s
own,1e-9,20,2,0.5,0.25,4
top,1e-9,,,,,
"""
    problem = read_problem(text)
    assert problem.payload_bits.tolist() == [20, 10]
    assert problem.deadline_s.tolist() == [4, 3]
    np.testing.assert_allclose(problem.max_power_w, [2.0, dbm_to_watt(23.0)], rtol=1e-12)
    np.testing.assert_allclose(problem.compute_time_s, [0.5, 0.25], rtol=1e-12)


def test_changes_go_on_top_of_the_file():
    problem = read_problem(one_device(), bandwidth_hz=1e5, rounds=7, deadline_s=None)
    assert (problem.bandwidth_hz, problem.rounds, problem.deadline_s.tolist()) == (1e5, 7, [1.0])


def test_json_and_csv_of_a_trace_mean_the_same():
    table = trace()
    lines = [f"# {name} = {value}" for name, value in table.items() if name != "devices"]
    lines.append("round,id,gain,available,samples,budget_j,max_power_w")
    for t in range(table["rounds"]):
        for device in table["devices"]:
            there = "yes" if device["available"][t] else "no"
            fixed = [device["samples"], device["budget_j"], device["max_power_w"]] if t % 3 == 0 else ["", "", ""]
            lines.append(",".join(map(str, [t, device["id"], repr(device["gains"][t]), there, *fixed])))
    assert_same(read_problem("\n".join(lines)), read_problem(json.dumps(table)))


def test_spreadsheets_bom_line_ends_and_padding_are_understood(tmp_path):
    file = tmp_path / "cell.csv"
    rows = '"# bandwidth_hz = 1e6",,\r\n# measured on a roof,,\r\nid,gain,payload_bits\r\na,1e-9,10\r\n,,\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + rows.encode())
    problem = read_problem(file)
    assert (problem.ids, problem.bandwidth_hz) == (("a",), 1e6)


# ── What is written is what is read ──────────────────────────────────────────

numbers = st.just(0.0) | st.floats(1e-45, 1e45)
states = st.floats(0, 1e300)
devices = st.fixed_dictionaries(
    {"gain": st.just(0.0) | st.floats(1e-45, 1.0), "payload_bits": numbers},
    optional={
        "cpu_hz": st.floats(1e6, 1e10),
        "static_power_w": st.floats(0.001, 1e4),
        "amplifier_efficiency": st.floats(0.01, 1.0),
        "circuit_power_w": st.floats(0.001, 1e4),
        "tail_energy_j": st.floats(0.001, 1e6),
        "receive_energy_j": st.floats(0.001, 1e6),
        "available": st.booleans(),
        "samples": numbers,
        "deadline_s": st.floats(1e-6, 1e9),
        "max_power_w": numbers,
        "budget_j": st.floats(1e-9, 1e9),
        "spent_j": states,
        "queue_j": states,
    },
)


@settings(max_examples=60)
@given(st.lists(devices, min_size=1, max_size=6), st.sampled_from([".json", ".csv"]), st.text(max_size=5))
def test_round_trip(tmp_path_factory, table, suffix, letters):
    safe = "".join(letter for letter in letters if letter.isprintable())
    rows = [{"id": f"{k}{safe},", **device} for k, device in enumerate(table)]
    for row in rows:
        if "cpu_hz" in row:
            row |= {"flops": 3e9, "min_cpu_hz": 0.3 * row["cpu_hz"]}
    problem = read_problem(json.dumps({"seed": 5, "rounds": 9, "memory": {"next": [2.0]}, "devices": rows}))
    path = tmp_path_factory.mktemp("trip") / f"problem{suffix}"
    write_problem(problem, path)
    assert_same(read_problem(path), problem)


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_round_trip_of_a_trace(tmp_path, suffix):
    problem = read_problem(json.dumps(trace()))
    write_problem(problem, tmp_path / f"trace{suffix}")
    assert_same(read_problem(tmp_path / f"trace{suffix}"), problem)


# ── Wrong files ──────────────────────────────────────────────────────────────

FIELDS_WITH_NUMBERS = [name for name in DEVICE_FIELDS if name not in ("id", "available")]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_no_field_of_a_device_may_be_without_a_finite_value(literal):
    for field in FIELDS_WITH_NUMBERS:
        device = {"id": "a", "gain": 1, "payload_bits": 1, "budget_j": 9, "cpu_hz": 1}
        if field in ("gain", "gain_db"):
            del device["gain"]
        row = {**device, field: literal}
        as_json = json.dumps({"devices": [{**device, field: "HERE"}]}).replace('"HERE"', literal)
        as_csv = ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n"
        for text in (as_json, as_csv):
            with pytest.raises(KflError, match=rf"^{field} of device 'a' is -?(nan|inf), but must be"):
                read_problem(text)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"wide"', "true", "[1]", "-500"])
def test_wrong_values_of_the_cell_name_the_field(value):
    for field in (name for name in CELL_FIELDS if name not in ("memory", "hard_budget")):
        with pytest.raises(KflError, match=rf"^{field} is .*, but must be"):
            read_problem(f'{{"{field}": {value}, "devices": [{{"id": "a", "gain": 1, "payload_bits": 1}}]}}')


@given(st.text(max_size=60) | st.text('{}[]",:ab0 \n#=', max_size=60))
@settings(max_examples=150)
def test_any_text_is_read_or_refused_with_a_sentence(text):
    try:
        read_problem(text + "\n")
    except KflError as problem:
        assert str(problem).strip().endswith((".", "?"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=200)
def test_any_values_are_scheduled_or_refused_with_a_sentence(data):
    """Whatever stands in a field, the answer is a decision in finite numbers or a sentence; never a traceback."""
    names = st.sampled_from([*DEVICE_FIELDS, "gains", "gains_db"])
    wild = json_values | st.floats(-1, 1e3) | st.floats(1e-45, 1e45)
    device = st.dictionaries(names, wild, max_size=4)
    base = {"gain": 1e-9, "payload_bits": 1e5}
    rows = [{"id": str(k), **base, **row} for k, row in enumerate(data.draw(st.lists(device, min_size=1, max_size=3)))]
    top = data.draw(st.dictionaries(st.sampled_from(list(CELL_FIELDS)), wild, max_size=2))
    try:
        problem = read_problem(json.dumps({**top, "devices": rows}))
        result = schedule(problem, data.draw(st.sampled_from([Dual(), Lyapunov(), RoundRobin(), Uniform()])))
    except KflError as refused:
        assert str(refused).endswith((".", "?"))
        return
    for one in result.rounds:
        assert one.share.sum() <= 1 + 1e-9
        assert all(np.isfinite(getattr(one, name)).all() for name in ("share", "power_w", "upload_energy_j"))


# ── Playing it through ───────────────────────────────────────────────────────


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("scheduler", [Dual(v=0.001), Lyapunov(v=0.001), RoundRobin(count=2), Uniform(count=3)])
def test_a_decision_keeps_the_physics_and_the_budgets(scheduler, hard):
    table = trace()
    problem = read_problem(json.dumps({**table, "hard_budget": hard}))
    result = schedule(problem, scheduler)
    assert sum(len(one.devices) for one in result.rounds) > 10
    for index, one in enumerate(result.rounds):
        assert one.share.sum() <= 1 + 1e-9
        assert problem.available[index, one.devices].all()
        rate = uplink_rate(
            one.share, one.power_w, problem.gain[index, one.devices], problem.bandwidth_hz, dbm_to_watt(-174.0)
        )
        np.testing.assert_allclose(rate * one.upload_time_s, problem.payload_bits[one.devices], rtol=1e-9)
        np.testing.assert_allclose(one.compute_time_s + one.upload_time_s, 1.0, rtol=1e-12)
        assert (one.power_w <= 0.5 * (1 + 1e-9)).all()
    spent = result.compute_energy_j + result.upload_energy_j
    np.testing.assert_allclose(result.following.spent_j, spent, rtol=1e-12)
    assert (spent > problem.budget_j).any() or hard or isinstance(scheduler, RoundRobin)
    if hard:
        assert (spent <= problem.budget_j * (1 + 1e-12)).all()


def test_the_bound_of_dual_is_below_and_queues_follow_their_equation():
    problem = read_problem(json.dumps(trace()))
    result = schedule(problem, Dual(v=0.001))
    assert all(one.lower_bound <= one.objective <= 0 for one in result.rounds)
    queue = np.zeros(problem.size)
    for one in result.rounds:
        spent = np.zeros(problem.size)
        spent[one.devices] = one.compute_energy_j + one.upload_energy_j
        queue = np.maximum(queue + spent - problem.budget_j / problem.rounds, 0)
        np.testing.assert_allclose(one.queue_j, queue[one.devices], rtol=1e-12)
    np.testing.assert_allclose(result.following.queue_j, queue, rtol=1e-12)


def test_every_device_has_an_outcome_with_its_reason():
    rows = [
        {"id": "fine"},
        {"id": "away", "available": False},
        {"id": "slow", "compute_time_s": 1.0, "compute_energy_j": 0.0},
        {"id": "faint", "gain": 1e-20},
        {"id": "poor", "compute_time_s": 0.1, "compute_energy_j": 3.0, "budget_j": 2.0},
        {"id": "deaf", "gain": 0.0},
        {"id": "dear", "queue_j": 1e9, "compute_time_s": 0.1, "compute_energy_j": 1.0},
    ]
    rows = [{"gain": 1e-9, "payload_bits": 1e5, **row} for row in rows]
    result = schedule(read_problem(json.dumps({"hard_budget": True, "devices": rows})))
    said = {row["id"]: result.reason(k) for k, row in enumerate(rows)}
    codes = {"fine": "scheduled", "dear": "not_chosen", "away": "unavailable", "slow": "past_deadline"}
    codes |= {"faint": "out_of_reach", "deaf": "out_of_reach", "poor": "no_energy"}
    assert said == {name: OUTCOMES[code] for name, code in codes.items()}


def test_sentences_of_a_scheduler_name_devices_as_the_user_does():
    rows = [{"id": name, "gain": 1e-9, "payload_bits": 1e5} for name in ("north", "south")]
    rows[1] |= {"compute_time_s": 2.0, "compute_energy_j": 0.0}
    problem = read_problem(json.dumps({"devices": rows}))
    status = schedule(problem, Lyapunov()).rounds[0].status
    assert "device south past the deadline" in describe(status, problem.ids)


def test_memory_of_another_length_is_refused():
    problem = read_problem(one_device(), memory={"next": [1.0, 2.0]})
    with pytest.raises(KflError, match=r"memory\.next"):
        schedule(problem, RoundRobin())


def wide_device(draw, name):
    """A whole device from wide regimes: with and without each part, from microwatts to watts."""

    def size(low, high, none=0.2):
        return 0.0 if draw.random() < none else float(10 ** draw.uniform(low, high))

    clock, most_w = 10 ** draw.uniform(6, 10), size(-6, 2, 0.05)
    return {
        "id": name,
        "gain": size(-16, -4, 0.05),
        "payload_bits": size(1, 9, 0.05),
        "samples": size(0, 4, 0.05),
        "deadline_s": 10 ** draw.uniform(-2, 3),
        "max_power_w": most_w,
        "min_power_w": most_w * 10 ** draw.uniform(-6, -0.1) if draw.random() < 0.5 else 0.0,
        "flops": size(4, 12, 0.1),
        "cpu_hz": clock,
        "min_cpu_hz": clock * 10 ** draw.uniform(-3, 0),
        "power_coefficient": size(-32, -24, 0.05),
        "static_power_w": size(-4, 2),
        "circuit_power_w": size(-5, 2),
        "amplifier_efficiency": draw.uniform(0.01, 1),
        "tail_energy_j": size(-4, 2),
        "queue_j": size(-4, 4, 0.4),
        "budget_j": 10 ** draw.uniform(-2, 4),
    }


@pytest.mark.parametrize("hard", [False, True])
def test_whole_devices_of_wide_regimes_keep_their_limits_and_their_joules_add_up(hard):
    draw, taken = np.random.default_rng(100), 0
    for _ in range(80):
        devices = [wide_device(draw, str(k)) for k in range(int(draw.integers(1, 8)))]
        table = {"bandwidth_hz": 10 ** draw.uniform(3, 8), "rounds": 10, "hard_budget": hard, "devices": devices}
        problem = read_problem(json.dumps(table))
        one = schedule(problem, Dual()).rounds[0]
        if problem.device.is_paper_model or not len(one.devices):
            continue
        taken += len(one.devices)
        assert one.lower_bound <= one.objective and one.share.sum() <= 1 + 1e-9
        spent = one.compute_energy_j + one.upload_energy_j
        np.testing.assert_allclose(sum(one.parts_j.values()), spent, rtol=1e-9)
        assert (one.compute_time_s + one.upload_time_s <= problem.deadline_s[one.devices] * (1 + 1e-9)).all()
        assert (one.power_w <= problem.max_power_w[one.devices] * (1 + 1e-6)).all()
        slowest, fastest = problem.device.min_cpu_hz[one.devices], problem.device.cpu_hz[one.devices]
        assert (slowest * (1 - 1e-9) <= one.clock_hz).all() and (one.clock_hz <= fastest * (1 + 1e-9)).all()
        assert not hard or (spent <= problem.budget_j[one.devices] * (1 + 1e-9)).all()
    assert taken > 50


def test_a_computation_that_just_ends_at_its_cheapest_has_a_price_of_zero() -> None:
    """Without circuits a second more of the upload costs nothing there, and the search for the price goes on."""
    device = {"id": "a", "gain": 7.37e-13, "payload_bits": 165.6, "deadline_s": 6.855, "max_power_w": 2.925e-6}
    device |= {"flops": 9.654e6, "cpu_hz": 5.546e9, "min_cpu_hz": 8.58e6, "power_coefficient": 1.6e-30}
    device |= {"static_power_w": 0.283, "amplifier_efficiency": 0.1467, "min_power_w": 6.28e-8, "queue_j": 0.0238}
    one = schedule(read_problem(json.dumps({"bandwidth_hz": 1.4e7, "devices": [device]})), Dual()).rounds[0]
    np.testing.assert_allclose(one.share, [1.0])
    assert one.lower_bound <= one.objective < 0
