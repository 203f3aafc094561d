"""The gaps of the proof that code can show: two losses for which the theorem as printed is false, and two factors."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduction.theory.gaps import GAPS, PAGE
from reproduction.theory.theorem1 import Constants, equal_counts, theorem1


def one_weight(curvature: float, gradient: float, rate: float, gap: float) -> Constants:
    """A loss of one weight of the body, plain gradient descent with one step a round, no head and no knowledge."""
    return Constants(
        body_smoothness=curvature,
        head_smoothness=0.0,
        cross_sensitivity=0.0,
        body_gradient=gradient,
        head_gradient=0.0,
        feature_gradient=0.0,
        feature_norm=0.0,
        body_rate=rate,
        head_rate=0.0,
        local_steps=1,
        knowledge_weight=0.0,
        initial_gap=gap,
    )


def test_the_printed_bound_is_false_for_log_cosh():
    """log cosh is 1-smooth with gradients below 1 and minimum 0 at 0. Far out its slope stays 1, so gradient descent
    comes nearer by a fixed step each round, while the printed bound falls geometrically."""
    w, rounds = 10.0, 20
    c = one_weight(1.0, 1.0, 1 / 8, np.log(np.cosh(w)))
    bound = theorem1(c, np.array([[1]]), np.ones((rounds, 1), bool))
    assert bound.within_assumptions
    for _ in range(rounds):
        w -= c.body_rate * np.tanh(w)
    assert np.log(np.cosh(w)) > 2 * bound.total


def test_the_printed_bound_is_false_where_a_device_is_never_scheduled():
    """F = ½w² on one device that never trains: its loss stays, the bound falls, and the schedule does not matter."""
    c = one_weight(1.0, 1.0, 1 / 8, 0.5)
    counts = np.array([[1]])
    nobody = theorem1(c, counts, np.zeros((100, 1), bool))
    assert nobody.within_assumptions
    assert nobody.total < 0.5
    assert nobody.total == theorem1(c, counts, np.ones((100, 1), bool)).total


def class_factor(counts):
    """C Σ_c D_{k,c}²/D_k² of each device: the factor that the step to 8ϑ²ς² drops."""
    samples = np.asarray(counts, dtype=np.float64)
    return samples.shape[1] * np.square(samples).sum(axis=1) / np.square(samples.sum(axis=1))


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 50), min_size=6, max_size=6).filter(any), min_size=1, max_size=5))
def test_the_factors_that_the_proof_drops_are_those_that_the_list_says(counts):
    assert (class_factor(counts) >= 1 - 1e-12).all()
    assert class_factor(equal_counts(100, 10, 2, 600)) == pytest.approx(5)
    proven, printed = sum(step * step for step in range(5)), sum(5 - step for step in range(5))
    shown = {gap.name: gap.shown for gap in GAPS}
    assert "It is 5 at two classes out of ten, and never below 1" in shown["class factor"]
    assert f"it is {proven} against {printed} at τ = 5" in shown["step factor"]


def test_every_gap_says_where_and_what():
    assert len({gap.name for gap in GAPS}) == len(GAPS)
    assert {gap.about for gap in GAPS} == {"Theorem 1", "Proposition 2"}
    assert all(gap.step and gap.says.endswith(".") and (not gap.shown or gap.shown.endswith(".")) for gap in GAPS)


def test_the_page_has_the_list_of_the_command():
    root = Path(__file__).parents[3]
    made = runpy.run_path(str(root / "docs" / "generated.py"))["on_page_markdown"]
    page = made((root / PAGE).read_text(encoding="utf-8"))
    table = page.partition("## Gaps of the proofs")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert rows == [f"| {gap.about}, {gap.step} | {gap.says} | {gap.shown} |" for gap in GAPS]
