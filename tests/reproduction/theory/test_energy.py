"""Proposition 2's inequality on the energy, and the account of a run on which it is evaluated."""

from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.scheduling import Decision, Status, Uniform
from reproduction.theory.energy import EnergyAccount, EnergyBound, proposition2_energy, why_not_covered


def test_queues_are_those_of_the_schedulers() -> None:
    spent = np.random.default_rng(0).uniform(0, 0.3, (30, 4))
    account = EnergyAccount(spent, np.zeros_like(spent), np.array([2.0, 4.0, 8.0, np.inf]))
    scheduler = Uniform()
    state = scheduler.init(account.budget_j, 30)
    nobody = Decision.nobody(4, Status())
    for t in range(30):
        assert account.queue_j[t] == pytest.approx(state.queue_j)
        state = scheduler.update(state, nobody, spent[t])
    assert account.queue_j[30] == pytest.approx(state.queue_j)
    assert account.left_j == pytest.approx(account.budget_j - spent.sum(axis=0))


def test_proposition_2_by_hand() -> None:
    energy = np.array([[0.5, 0.0], [0.0, 0.0], [0.1, 0.2], [0.0, 0.0]])
    account = EnergyAccount(energy, np.zeros_like(energy), np.array([0.4, 0.8]))
    gamma = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    bound = proposition2_energy(account, np.array([10.0, 30.0]), v=0.5, gamma=gamma, everybody_j=2.8)
    zeta = 0.5 * (0.4**2 + 0.2**2)
    assert bound.slack_j == pytest.approx(np.sqrt(4 * (4 * zeta + 0.5 * 40 * (1 + 1 / 2 + 1 / 3 + 1 / 4))))
    assert bound.slack_at_zero_v_j == pytest.approx(np.sqrt(16 * zeta))
    assert bound.spent_j == pytest.approx(0.8) and bound.budget_j == pytest.approx(1.2)
    assert bound.holds and bound.vacuous and "vacuous. Even all devices" in str(bound)


def test_a_bound_that_says_something() -> None:
    """Dear devices that are scheduled rarely: spending in every round would break the inequality."""
    energy = np.zeros((400, 2))
    energy[::100] = 1.0
    account = EnergyAccount(energy, np.zeros_like(energy), np.full(2, 4.0))
    bound = proposition2_energy(account, np.ones(2), v=0.0, gamma=np.ones(400), everybody_j=800.0)
    assert bound.holds and bound.vacuous is False and str(bound).count("holds") == 1
    assert proposition2_energy(account, np.ones(2), v=0.0, gamma=np.ones(400)).vacuous is None
    everything = EnergyAccount(np.ones((400, 2)), np.zeros((400, 2)), np.full(2, 4.0))
    assert not proposition2_energy(everything, np.ones(2), v=0.0, gamma=np.ones(400)).holds


def test_without_budgets_the_bound_is_vacuous() -> None:
    account = EnergyAccount(np.ones((3, 2)), np.zeros((3, 2)), np.full(2, np.inf))
    assert proposition2_energy(account, np.ones(2), v=0.1, gamma=np.ones(3)).vacuous


@pytest.mark.parametrize(("round_j", "vacuous"), [(0.06, True), (0.6, False)])
def test_at_the_papers_settings_the_slack_is_of_the_size_of_the_budget(round_j: float, vacuous: bool) -> None:
    """200 rounds, 100 devices, 0.1 J a round each; a round costs 0.06 J at κ = 1e-28 and 0.6 J at 1e-27."""
    energy = round_j * (np.random.default_rng(1).random((200, 100)) < min(0.1 / round_j, 1))
    account = EnergyAccount(energy, np.zeros_like(energy), np.full(100, 20.0))
    everybody_j = 200 * 100 * round_j
    bound = proposition2_energy(account, np.full(100, 600.0), 0.01, 1 / np.arange(1, 201), everybody_j)
    assert bound.holds and bound.vacuous == vacuous
    assert bound.slack_j > 0.4 * bound.budget_j


@pytest.mark.parametrize(
    ("compute", "upload", "budget"),
    [
        ((3, 2), (3, 2), (3,)),
        ((2, 3), (2, 3), (2,)),
        ((3, 2), (2, 2), (2,)),
        ((3, 2), (3,), (2,)),
        ((3,), (3,), ()),
        ((3, 2), (3, 2), (3, 2)),
    ],
)
def test_shapes_must_agree(compute, upload, budget) -> None:
    with pytest.raises(ConfigError, match="shapes"):
        EnergyAccount(np.zeros(compute), np.zeros(upload), np.zeros(budget))


def test_proposition_2_needs_a_gamma_for_each_round() -> None:
    account = EnergyAccount(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(2))
    with pytest.raises(ConfigError, match="gamma"):
        proposition2_energy(account, np.ones(2), 0.1, np.ones(2))


def test_what_is_left_is_negative_where_a_device_overspent() -> None:
    account = EnergyAccount(np.array([[1.0, 2.0], [3.0, 4.0]]), np.full((2, 2), 0.5), np.array([10.0, 5.0]))
    assert account.left_j.tolist() == [5.0, -2.0]
    assert account.rounds == 2
    assert account.queue_j.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]


def test_a_bound_holds_up_to_its_limit_and_says_nothing_where_everybody_would_satisfy_it() -> None:
    bound = EnergyBound(spent_j=5.0, budget_j=3.0, slack_j=2.0, slack_at_zero_v_j=1.0)
    assert (bound.limit_j, bound.holds, bound.vacuous) == (5.0, True, None)
    assert not replace(bound, spent_j=5.001).holds
    assert replace(bound, everybody_j=5.0).vacuous is True
    assert replace(bound, everybody_j=5.001).vacuous is False


def test_a_run_of_no_rounds_has_spent_nothing() -> None:
    account = EnergyAccount(np.zeros((0, 2)), np.zeros((0, 2)), np.array([3.0, 4.0]))
    assert account.rounds == 0 and account.left_j.tolist() == [3.0, 4.0] and account.queue_j.tolist() == [[0.0, 0.0]]
    bound = proposition2_energy(account, np.ones(2), v=2.0, gamma=np.zeros(0))
    assert (bound.spent_j, bound.budget_j, bound.slack_j, bound.slack_at_zero_v_j) == (0, 7, 0, 0)
    assert account.dominant() == "No energy was spent."


def test_a_run_of_one_round_may_spend_the_whole_budget_in_it() -> None:
    account = EnergyAccount(np.array([[3.0, 1.0]]), np.array([[0.5, 0.0]]), np.array([2.0, 2.0]))
    assert account.queue_j.tolist() == [[0.0, 0.0], [1.5, 0.0]]
    bound = proposition2_energy(account, np.ones(2), v=0.0, gamma=np.ones(1))
    assert bound.slack_j == pytest.approx(np.sqrt(4 * 0.5 * (1.5**2 + 1.0**2)))


def test_proposition_2_for_devices_of_which_some_have_no_budget() -> None:
    """ζ is the largest step a queue can make: without a budget there is none."""
    account = EnergyAccount(np.full((4, 2), 0.3), np.full((4, 2), 0.2), np.array([2.0, np.inf]))
    bound = proposition2_energy(account, np.ones(2), v=0.1, gamma=np.ones(4))
    assert bound.slack_j == bound.slack_at_zero_v_j == bound.budget_j == np.inf
    assert bound.spent_j == pytest.approx(4.0) and bound.holds and bound.vacuous


@pytest.mark.parametrize(
    ("bound", "end"),
    [
        (EnergyBound(5.0, 4.0, 2.0, 1.0), "(50 % of the budget; 1 J even at V = 0): holds."),
        (EnergyBound(7.0, 4.0, 2.0, 1.0), "V = 0): violated."),
        (EnergyBound(7.0, 4.0, 2.0, 1.0, 9.0), "violated. All devices in every round: 9 J."),
        (EnergyBound(5.0, 4.0, 2.0, 1.0, 6.5), "holds. All devices in every round: 6.5 J."),
        (
            EnergyBound(5.0, 4.0, 2.0, 1.0, 5.5),
            "vacuous. Even all devices in every round would satisfy it, with 5.5 J.",
        ),
        (EnergyBound(5.0, np.inf, 2.0, 1.0), "vacuous."),
    ],
)
def test_a_bound_in_words(bound: EnergyBound, end: str) -> None:
    assert str(bound).startswith(
        f"Proposition 2, energy: {bound.spent_j:.4g} J spent ≤ {bound.budget_j:.4g} J budget + 2 J"
    )
    assert str(bound).endswith(end)


def test_why_proposition_2_does_not_apply() -> None:
    assert why_not_covered("dual", minimises_drift=True, hard_budget=False) is None
    both = why_not_covered("dual", minimises_drift=True, hard_budget=True, batteries=True)
    assert both is not None and "batteries" in both
    hard = why_not_covered("dual", minimises_drift=True, hard_budget=True)
    assert hard is not None and "hard" in hard
    other = why_not_covered("uniform", minimises_drift=False, hard_budget=True, batteries=True)
    assert other is not None and other.endswith("and uniform does not")
