"""Whole resource blocks against trying every split."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling import SCHEDULERS, Dual, Lyapunov, Observation, SchedulerState, Status, Uplink
from kfl.scheduling.blocks import quantize_to_blocks, round_to_blocks
from kfl.wireless.costs import transmit_power

B, N0 = 1e6, 1e-20


def _case(seed: int, devices: int) -> dict[str, np.ndarray]:
    draw = stream(seed, "test")
    return {
        "payload_bits": draw.uniform(1e4, 3e5, devices),
        "time_s": draw.uniform(0.2, 1.0, devices),
        "gain": 10 ** draw.uniform(-13, -10, devices),
        "max_power_w": np.full(devices, 0.5),
    }


def _energy(case: dict[str, np.ndarray], share: np.ndarray) -> np.ndarray:
    power = transmit_power(share, case["payload_bits"], case["time_s"], case["gain"], B, N0)
    return np.where(power <= case["max_power_w"], power * case["time_s"], np.inf)


@pytest.mark.parametrize("seed", range(12))
def test_no_other_split_is_better(seed: int) -> None:
    blocks, devices = 9, 3
    case = _case(seed, devices)
    weight = stream(seed, "weight").uniform(0, 2, devices)
    split = round_to_blocks(np.full(devices, 1 / 3), blocks, Uplink(B, N0, **case), weight=weight)
    best = min(
        float(np.sum(weight * _energy(case, np.array(counts) / blocks)))
        for counts in itertools.product(range(1, blocks), repeat=devices)
        if sum(counts) <= blocks
    )
    if split.dropped.any():
        assert best == np.inf
        return
    assert np.sum(weight * _energy(case, split.share)) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_shares_are_whole_blocks_within_the_band_and_the_limits(seed: int) -> None:
    devices, blocks = 40, 25
    case = _case(seed, devices)
    share = np.where(np.arange(devices) % 3 == 0, 0.0, 1 / devices)
    limit = np.full(devices, 0.05)
    split = round_to_blocks(share, blocks, Uplink(B, N0, **case), energy_limit_j=limit)
    assert split.share.sum() <= 1 + 1e-12
    assert np.allclose(split.share * blocks, np.round(split.share * blocks))
    assert (split.share[share == 0] == 0).all() and not split.dropped[share == 0].any()
    kept = split.share > 0
    assert (kept ^ split.dropped)[share > 0].all()
    assert (_energy(case, split.share)[kept] <= 0.05 * (1 + 1e-9)).all()


def test_nobody_to_serve() -> None:
    split = round_to_blocks(np.zeros(3), 5, Uplink(B, N0, **_case(0, 3)))
    assert (split.share == 0).all() and not split.dropped.any()


def _best_value(case: dict[str, np.ndarray], blocks: int, weight: np.ndarray, worth: np.ndarray) -> float:
    """The least Σ (weight · energy − worth) over every set of devices and every split of the blocks among them."""
    devices = len(weight)
    terms = np.zeros((devices, blocks + 1))
    for count in range(1, blocks + 1):
        energy = _energy(case, np.full(devices, count / blocks))
        terms[:, count] = np.where(
            np.isfinite(energy), weight * np.where(np.isfinite(energy), energy, 0.0) - worth, np.inf
        )
    return min(
        sum(terms[k, count] for k, count in enumerate(counts))
        for counts in itertools.product(range(blocks + 1), repeat=devices)
        if sum(counts) <= blocks
    )


def _value(case: dict[str, np.ndarray], share: np.ndarray, weight: np.ndarray, worth: np.ndarray) -> float:
    kept = share > 0
    energy = _energy({name: values[kept] for name, values in case.items()}, share[kept])
    return float(np.sum(weight[kept] * energy - worth[kept]))


def test_who_stays_is_close_to_the_best_of_all_sets() -> None:
    """Four blocks cannot carry five devices: mostly the best set stays, and never one worse than by fewest blocks."""
    optimal, gaps, fewest = 0, [], []
    for seed in range(100):
        case, draw = _case(seed, 5), stream(seed, "weight")
        weight = 10 ** draw.uniform(-1, 1, 5) * (draw.random(5) > 0.2)
        worth = 0.3 * 10 ** draw.uniform(-2, 1, 5)
        link, wanted = Uplink(B, N0, **case), np.full(5, 1 / 5)
        best = _best_value(case, 4, weight, worth)
        found = _value(case, round_to_blocks(wanted, 4, link, weight=weight, worth=worth).share, weight, worth)
        plain = _value(case, round_to_blocks(wanted, 4, link, weight=weight).share, weight, worth)
        assert best - 1e-12 <= found <= plain + 1e-12
        optimal += found <= best + 1e-9 * abs(best)
        gaps.append((found - best) / abs(best))
        fewest.append((plain - best) / abs(best))
    assert optimal >= 80 and np.mean(gaps) < 0.02 and np.mean(fewest) > 0.1, (optimal, np.mean(gaps), np.mean(fewest))


def _round(seed: int, devices: int = 6) -> tuple[SchedulerState, Observation]:
    draw = stream(seed, "round")
    state = SchedulerState(100, np.full(devices, 0.1), draw.choice([0.0, 0.02, 0.3], devices))
    seen = Observation(
        round=3,
        seed=seed,
        samples=draw.uniform(100, 900, devices),
        available=np.ones(devices, dtype=bool),
        compute_time_s=np.zeros(devices),
        base_energy_j=draw.uniform(0.01, 0.1, devices),
        battery_j=np.full(devices, np.inf),
        hard_budget=False,
        uplink=Uplink(B, N0, **_case(seed, devices)),
    )
    return state, seen


@pytest.mark.parametrize("scheduler", [Lyapunov(), Dual(), Lyapunov(v=0.001), Dual(v=0.001)], ids=str)
def test_the_queues_that_shared_the_band_share_the_blocks(scheduler) -> None:
    """Of all splits among the same devices, none has a smaller Σ (q + ε) E; the objective is that of the blocks."""
    compared = 0
    for seed in range(12):
        state, seen = _round(seed)
        before = scheduler.decide(state, seen)
        after = quantize_to_blocks(before, scheduler, state, seen, 8)
        assert after.lower_bound == before.lower_bound or np.isnan(before.lower_bound)
        energy = seen.base_energy_j + after.upload_energy_j
        worth = scheduler.printed_v(state, seen.samples) / 4 * seen.samples
        charged = np.where(state.queue_j > 0, state.queue_j * energy, 0.0)
        assert after.objective == pytest.approx(np.sum((charged - worth)[after.chosen]), rel=1e-9, abs=1e-15)
        if not np.isnan(before.lower_bound):
            assert after.gap >= -1e-12
        weight = state.queue_j + scheduler.epsilon * 0.1
        kept = np.flatnonzero(after.chosen)
        case = {name: getattr(seen.uplink, name)[kept] for name in _case(0, 1)}
        best = min(
            float(np.sum(weight[kept] * _energy(case, np.array(counts) / 8)))
            for counts in itertools.product(range(1, 9), repeat=len(kept))
            if sum(counts) <= 8
        )
        assert np.sum(weight * after.upload_energy_j) == pytest.approx(best, rel=1e-9)
        ours, even = after.share, quantize_to_blocks(before, SCHEDULERS["all"](), state, seen, 8).share
        compared += not np.array_equal(ours, even)
    assert compared > 3  # weights of 1 would have split the blocks in another way


@pytest.mark.parametrize("name", ["all", "uniform", "round-robin", "myopic"])
def test_a_scheduler_without_worths_keeps_as_many_as_fit(name) -> None:
    scheduler = SCHEDULERS[name]()
    state, seen = _round(5, devices=12)
    state = scheduler.init(np.full(12, 10.0), 100)
    before = scheduler.decide(state, seen)
    after = quantize_to_blocks(before, scheduler, state, seen, 6)
    assert np.isnan(after.objective) and (before.chosen >= after.chosen).all()
    plain = round_to_blocks(before.share, 6, seen.uplink)
    np.testing.assert_array_equal(after.share, plain.share)


def test_a_deep_fade_stays_waited_out_quantize_to_blocks() -> None:
    """No upload in blocks costs more than the scheduler lets one cost."""
    scheduler = Dual(dearest_upload=0.5)
    for seed in range(20):
        state, seen = _round(seed, devices=10)
        after = quantize_to_blocks(scheduler.decide(state, seen), scheduler, state, seen, 7)
        assert (after.upload_energy_j <= 0.05 * (1 + 2e-9)).all()


# ── Worked out manually ──────────────────────────────────────────────────────


def _even(devices: int, gain: float = 1e-10, bits: float = 1e5) -> Uplink:
    one = np.ones(devices)
    return Uplink(B, N0, gain * one, bits * one, one, 0.5 * one)


def test_without_a_radio_there_are_no_blocks() -> None:
    state, seen = _round(0)
    quiet = replace(seen, uplink=None)
    decision = Dual().decide(state, quiet)
    assert quantize_to_blocks(decision, Dual(), state, quiet, 4) is decision


def test_who_does_not_fit_is_named_and_who_does_keeps_the_word_on_the_round() -> None:
    scheduler = SCHEDULERS["all"]()
    _, seen = _round(5)
    seen = replace(seen, uplink=_even(6))
    state = scheduler.init(np.full(6, 10.0), 100)
    noted = replace(scheduler.decide(state, seen), status=Status("too_few", facts={"able": 6, "wanted": 9}))
    assert quantize_to_blocks(noted, scheduler, state, seen, 6).status == noted.status
    crowded = quantize_to_blocks(noted, scheduler, state, seen, 4)
    out = np.flatnonzero(~crowded.chosen)
    assert len(out) == 2 and crowded.status == Status("too_few_blocks", {"crowded": tuple(out.tolist())}, {"blocks": 4})
    assert crowded.share.tolist() == [0.25 * on for on in crowded.chosen]


def test_a_hard_budget_holds_quantize_to_blocks_too() -> None:
    """With half of the band it could pay, with the quarter that is left it could not."""
    scheduler, link = SCHEDULERS["all"](), _even(2, gain=1e-13)
    _, seen = _round(5, devices=2)
    cost = link.curve.energy_j(np.full(2, 0.5))
    battery = seen.base_energy_j + cost * np.array([1.0 + 1e-6, 0.9])
    hard = replace(seen, uplink=link, battery_j=battery, hard_budget=True)
    state = scheduler.init(np.full(2, 10.0), 100)
    share = replace(scheduler.decide(state, replace(hard, hard_budget=False)), share=np.full(2, 0.5))
    assert quantize_to_blocks(share, scheduler, state, hard, 4).share.tolist() in ([0.5, 0.0], [1.0, 0.0])
    assert quantize_to_blocks(share, scheduler, state, replace(hard, hard_budget=False), 4).share.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("beyond", "blocks"), [(0.5e-9, 2), (1.5e-9, 3)])
def test_an_energy_limit_may_be_met_up_to_rounding(beyond: float, blocks: int) -> None:
    link = _even(1, gain=1e-13)
    cost = link.energy_within_limits(np.array([2 / 8]))
    rest = Uplink(B, N0, np.array([1e-13, 1e-10]), np.full(2, 1e5), np.ones(2), np.full(2, 0.5))
    split = round_to_blocks(
        np.array([0.5, 0.5]),
        8,
        rest,
        weight=np.array([0.0, 1.0]),
        energy_limit_j=np.array([float(cost[0]) / (1 + beyond), np.inf]),
    )
    assert split.share.tolist() == [blocks / 8, 1 - blocks / 8]


def test_blocks_that_save_nothing_stay_unused_and_go_to_whom_they_save_most() -> None:
    free = round_to_blocks(np.array([0.5, 0.0, 0.5]), 8, _even(3), weight=np.array([0.0, 1.0, 0.0]))
    assert free.share.tolist() == [1 / 8, 0, 1 / 8] and not free.dropped.any()
    even = round_to_blocks(np.full(3, 0.1), 9, _even(3))
    assert even.share.tolist() == [3 / 9] * 3
    one = round_to_blocks(np.array([0.0, 0.3, 0.0]), 5, _even(3))
    assert one.share.tolist() == [0, 1, 0]


def test_a_device_that_is_worth_exactly_its_joules_stays_and_one_that_is_not_goes() -> None:
    link = _even(2)
    whole = float(link.curve.energy_j(np.array([0.5]))[0])
    for worth, kept in (([0.0, 0.0], [True, True]), ([-1e-9, 0.0], [False, True])):
        split = round_to_blocks(np.full(2, 0.5), 2, link, weight=np.zeros(2), worth=np.array(worth))
        assert (split.share > 0).tolist() == kept and split.dropped.tolist() == [not one for one in kept]
    split = round_to_blocks(np.full(2, 0.5), 2, link, worth=np.array([whole * 0.2, whole * 1.1]))
    assert (split.share > 0).tolist() == [False, True]  # and the other then has both blocks
    assert split.share[1] == 1.0


def test_of_devices_that_need_as_many_blocks_the_first_stay() -> None:
    split = round_to_blocks(np.full(4, 0.25), 2, _even(4))
    assert split.share.tolist() == [0.5, 0.5, 0, 0] and split.dropped.tolist() == [False, False, True, True]
    valued = round_to_blocks(np.full(4, 0.25), 2, _even(4), worth=np.array([1.0, 3.0, 2.0, 3.0]))
    assert valued.share.tolist() == [0, 0.5, 0, 0.5]


def test_the_fewest_blocks_by_counting() -> None:
    """Devices alone: one that cannot send with all blocks is dropped, others get the first number that works."""
    for seed in range(6):
        case = _case(seed, 12)
        case["payload_bits"] = case["payload_bits"] * 10
        link = Uplink(B, N0, **case)
        need = []
        for k in range(12):
            one = {name: values[k : k + 1] for name, values in case.items()}
            need.append(next((m for m in range(1, 9) if np.isfinite(_energy(one, np.array([m / 8])))[0]), 9))
            alone = np.where(np.arange(12) == k, 0.5, 0.0)
            split = round_to_blocks(alone, 8, link, weight=np.zeros(12))
            assert split.share[k] == (need[k] / 8 if need[k] <= 8 else 0) and split.dropped[k] == (need[k] > 8)
        assert len(set(need)) > 2


def test_a_scheduler_keeps_the_devices_that_are_worth_most_to_it() -> None:
    """Four alike but for their data, and two blocks."""
    _, seen = _round(1, devices=4)
    seen = replace(
        seen, uplink=_even(4), samples=np.array([100.0, 400.0, 200.0, 300.0]), base_energy_j=np.full(4, 0.01)
    )
    state = SchedulerState(100, np.full(4, 0.1), np.full(4, 1e-3))
    scheduler = Lyapunov(v=0.01)
    after = quantize_to_blocks(scheduler.decide(state, seen), scheduler, state, seen, 2)
    assert after.share.tolist() == [0, 0.5, 0, 0.5]


def test_blocks_go_to_whom_each_is_worth_most() -> None:
    """Needs of 4, 2, 2, 1 and 1 of 4 blocks: worth per block beats worth alone, and the fewest blocks."""
    need, link = np.array([4, 2, 2, 1, 1]), _even(5)
    floor = need / 4 - 0.05
    link = replace(link, payload_bits=floor * B * np.log2(1 + link.snr / floor))
    worth = np.array([8.0, 6.0, 5.0, 0.1, 0.1])
    split = round_to_blocks(np.full(5, 0.2), 4, link, weight=np.zeros(5), worth=worth)
    assert split.share.tolist() == [0, 0.5, 0.5, 0, 0]
    plain = round_to_blocks(np.full(5, 0.2), 4, link, weight=np.zeros(5))
    assert plain.share.tolist() == [0, 0.5, 0, 0.25, 0.25]


def test_of_many_that_need_as_many_blocks_the_first_stay() -> None:
    split = round_to_blocks(np.full(60, 1 / 60), 20, _even(60, bits=1e3))
    assert np.flatnonzero(split.share).tolist() == list(range(20))
