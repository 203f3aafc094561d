"""What decisions about whole devices promise, on random cells."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.scheduling import AllDevices, Dual, Lyapunov, Observation, Uniform
from kfl.scheduling.blocks import quantize_to_blocks
from kfl.scheduling.uplink import ENERGY_PARTS
from kfl.wireless import Cell, CellConfig

DEVICES, HORIZON = 6, 20
CELLS = st.builds(
    CellConfig,
    bandwidth_hz=st.sampled_from([1e4, 1e5, 5e6]),
    min_cpu_hz=st.sampled_from([None, 1e7, 8e8]),
    static_power_w=st.sampled_from([0.0, 1e-3, 0.5]),
    amplifier_efficiency=st.sampled_from([1.0, 0.3]),
    circuit_power_w=st.sampled_from([0.0, 1e-9, 0.05, 3.0]),
    min_power_dbm=st.sampled_from([None, -60.0, 0.0, 29.0]),
    connect_energy_j=st.sampled_from([0.0, 0.02]),
    receive_power_w=st.sampled_from([0.0, 0.3]),
    tail_power_w=st.sampled_from([0.0, 0.1]),
    tail_s=st.sampled_from([0.0, 2.0]),
    downlink_power_dbm=st.sampled_from([None, 40.0]),
)


def observed(config: CellConfig, seed: int, payload_bits: float = 20480.0) -> Observation:
    cell = Cell.build(config, DEVICES, seed)
    link = cell.link_state(0, 1.65e9, payload_bits, broadcast_bits=20480.0)
    uplink = link.uplink
    return Observation(
        round=0,
        seed=seed,
        samples=np.full(DEVICES, 600.0),
        available=np.ones(DEVICES, bool),
        compute_time_s=link.uplink.device.fastest_s,
        base_energy_j=uplink.base_energy_j(link.compute_energy_j),
        battery_j=np.full(DEVICES, np.inf),
        hard_budget=False,
        uplink=uplink,
    )


@settings(max_examples=60)
@given(CELLS, st.integers(0, 1000), st.sampled_from([Uniform(count=3), AllDevices(), Dual(v=0.1)]), st.booleans())
def test_a_decision_spends_what_base_and_curve_say(config, seed, scheduler, blocks) -> None:
    seen = observed(config, seed)
    state = replace(scheduler.init(np.full(DEVICES, 2.0), HORIZON), queue_j=np.full(DEVICES, 0.2))
    decision = scheduler.decide(state, seen)
    if blocks:
        decision = quantize_to_blocks(decision, scheduler, state, seen, 25)
    on = np.flatnonzero(decision.chosen)
    assert seen.uplink is not None and (seen.uplink.device.is_paper_model or not config.printed_model)
    assert (decision.clock_hz is None) == (seen.uplink.device.is_paper_model or not len(on))
    compute_j, upload_j = decision.energy_j()
    expected = seen.base_energy_j[on] + seen.uplink.take(on).curve.energy_j(decision.share[on])
    np.testing.assert_allclose((compute_j + upload_j)[on], expected, rtol=1e-9)
    assert not compute_j[~decision.chosen].any() and not upload_j[~decision.chosen].any()
    parts = decision.parts_j(seen.uplink)
    assert tuple(parts) == ENERGY_PARTS and all((one >= 0).all() for one in parts.values())
    np.testing.assert_allclose(parts["computing"] + parts["static"], compute_j, rtol=1e-12)
    np.testing.assert_allclose(sum(parts[name] for name in ENERGY_PARTS[2:]), upload_j, rtol=1e-12)
    busy_s = decision.compute_time_s + decision.upload_time_s
    left_s = seen.compute_time_s + seen.uplink.upload_time_s
    assert (busy_s[on] <= left_s[on] * (1 + 1e-12)).all()


def test_the_fields_of_a_cell_are_where_the_joules_go() -> None:
    config = CellConfig(
        connect_energy_j=0.02, tail_power_w=0.5, tail_s=10.0, receive_power_w=2.0, downlink_power_dbm=30.0
    )
    seen = observed(config, 0)
    parts = AllDevices().decide(AllDevices().init(np.ones(DEVICES), 1), seen).parts_j(seen.uplink)
    link = Cell.build(config, DEVICES, 0).link_state(0, 1.65e9, 20480, broadcast_bits=20480.0)
    assert link.reserved_s > 0 and parts["tail"] == pytest.approx(5.02)
    assert parts["receiving"] == pytest.approx(2.0 * link.reserved_s)
    silent = observed(config, 0, payload_bits=0.0)
    quiet = AllDevices().decide(AllDevices().init(np.ones(DEVICES), 1), silent).parts_j(silent.uplink)
    assert not quiet["tail"].any() and quiet["receiving"].all(), "who sends nothing needs no connection"


def test_slower_clocks_save_most_of_the_computing_energy_in_the_papers_cell() -> None:
    fixed, free = observed(CellConfig(), 0), observed(CellConfig(min_cpu_hz=1e8), 0)
    state = AllDevices().init(np.ones(DEVICES), 1)
    (dear, _), (cheap, _) = (AllDevices().decide(state, seen).energy_j() for seen in (fixed, free))
    assert 4 < dear.sum() / cheap.sum() < 12


def test_the_printed_rule_is_refused_for_whole_devices() -> None:
    printed = Lyapunov(as_printed=True, v=0.01)
    state = printed.init(np.ones(DEVICES), HORIZON)
    assert printed.decide(state, observed(CellConfig(), 0)).chosen.any()
    with pytest.raises(ConfigError, match="as_printed is True, but must be false in a cell with whole devices"):
        printed.decide(state, observed(CellConfig(tail_power_w=1.0, tail_s=1.0), 0))
