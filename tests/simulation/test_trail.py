"""The trail: what is kept of the rounds on the way, and that it is the truth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kfl
from kfl.runfolder import RunReader, Snapshot, kept_rounds
from kfl.runfolder._snapshot import MOST_SNAPSHOTS
from tests.reference.runs import SMALL, data


def test_the_last_snapshot_is_the_end_of_the_run(tmp_path):
    history = kfl.run(replace(SMALL, rounds=7), tmp_path, dataset=data())
    trail = RunReader(tmp_path).trail()
    assert [seen.round for seen in trail] == list(range(7))
    with np.load(tmp_path / "server.npz") as arrays:
        largest = np.abs(arrays["knowledge"]).max()
        np.testing.assert_allclose(trail[-1].knowledge, arrays["knowledge"], atol=largest * 2**-11)
        np.testing.assert_array_equal(trail[-1].known, arrays["known"])
    expected = [record["accuracy"] for record in history.devices]
    np.testing.assert_allclose(trail[-1].accuracy, expected, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedproto", "fedkd"])
def test_every_algorithm_leaves_a_trail_and_only_knowledge_is_called_so(tmp_path, algorithm):
    learner = kfl.algorithms.ALGORITHMS[algorithm]()
    kfl.run(replace(SMALL, rounds=3, widths=(8,), algorithm=learner), tmp_path, dataset=data())
    trail = RunReader(tmp_path).trail()
    assert [seen.round for seen in trail] == [0, 1, 2]
    assert all((seen.knowledge is not None) == (algorithm == "fedproto") for seen in trail)
    assert all(seen.accuracy is not None for seen in trail)


def test_rounds_without_a_test_keep_no_accuracy(tmp_path):
    kfl.run(replace(SMALL, rounds=5, evaluate_every=2), tmp_path, dataset=data())
    assert [seen.accuracy is not None for seen in RunReader(tmp_path).trail()] == [False, True, False, True, True]


@given(st.integers(1, 100_000))
def test_kept_rounds_are_few_and_hold_both_ends(rounds):
    kept = sorted(kept_rounds(rounds))
    assert len(kept) == min(rounds, MOST_SNAPSHOTS)
    assert kept[0] == 0 and kept[-1] == rounds - 1
    steps = np.diff(kept)
    assert not steps.size or steps.max() - steps.min() <= 1


@given(
    st.integers(0, 10**6),
    st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.floats(0, 1), max_size=5),
)
def test_a_line_is_read_as_it_was_written(number, rows, accuracy):
    knowledge = np.array(rows)
    known = np.arange(len(rows)) % 2 == 0
    again = Snapshot.from_line(Snapshot(number, knowledge, known, np.array(accuracy)).to_line())
    assert again.round == number
    np.testing.assert_allclose(again.knowledge, knowledge, atol=np.abs(knowledge).max() * 2**-11)
    np.testing.assert_array_equal(again.known, known)
    np.testing.assert_allclose(again.accuracy, accuracy, atol=1e-7)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        '{"round": "1"}',
        '{"round": 1, "knowledge": "AAAA", "known": [], "scale": 1.0}',
        '{"round": 1, "knowledge": "AAAA", "known": [1], "scale": 1e999}',
        '{"round": 1, "accuracy": "AAAAQA=="}',
        '{"round": 1, "knowledge": "AEA=", "known": [1], "scale": 1.0}',
        '{"round": 1, "knowledge": "AAAA", "known": [1, 1, 1], "scale": 1.0}',
        '{"round": 1, "knowledge": "!!!!", "known": [1], "scale": 1.0}',
        '{"round": 1, "knowledge": "AHw=", "known": [1], "scale": 1.0}',
        '{"round": 1, "accuracy": 3}',
        '{"round": 1, "accuracy": "AAA="}',
    ],
)
def test_a_damaged_line_is_a_value_error(line):
    with pytest.raises(ValueError):
        Snapshot.from_line(line)
