"""Knowledge in few bits: how wrong it can be, that random rounding is right on average, and that it happens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import Kfl, Upload
from kfl.algorithms.quantise import encode, message_bits, pack, packed_bits, packed_format, quantise_rows, unpack
from kfl.core.errors import ConfigError
from kfl.engine import RoundKey

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


@settings(deadline=None, max_examples=80)
@given(numbers, st.integers(1, 31), st.booleans())
def test_error_is_bounded_and_codes_fit(values, bits, at_random):
    exact = torch.tensor(values)
    draw = torch.Generator().manual_seed(1) if at_random else None
    sent = encode(exact, bits, draw)
    assert int(sent.codes.min()) >= 0 and int(sent.codes.max()) < 2**bits
    step = (max(values) - min(values)) / (2**bits - 1)
    error = (sent.decode().double() - exact.double()).abs().max()
    rounding = 1e-6 * max(abs(v) for v in values)  # of float32
    assert float(error) <= (step if at_random else step / 2) + rounding
    arrived = sent.decode()  # the ends of the range are on the grid
    assert float(arrived.min()) == pytest.approx(min(values), abs=rounding)
    assert float(arrived.max()) == pytest.approx(max(values), abs=rounding)


def test_nearest_is_the_nearest_of_the_grid():
    values = torch.linspace(-1, 2, 101)
    grid = torch.linspace(-1, 2, 8)
    nearest = grid[(values[:, None] - grid).abs().argmin(1)]
    torch.testing.assert_close(encode(values, 3).decode(), nearest, rtol=0, atol=1e-6)


def test_random_rounding_is_right_on_average():
    """The mean of 8,000 draws is within 4.5 standard errors; nearest rounding would be off by a third of a step."""
    values = torch.tensor([0.0, 0.1, 1 / 3, 0.5, 0.9, 1.0])
    draw = torch.Generator().manual_seed(5)
    repeats = 8_000
    mean = torch.stack([encode(values, 1, draw).decode().double() for _ in range(repeats)]).mean(0)
    deviation = (values * (1 - values)).sqrt().double() / math.sqrt(repeats)
    assert bool(((mean - values.double()).abs() <= 4.5 * deviation + 1e-7).all())


def test_rows_that_are_not_sent_do_not_widen_the_range():
    values = torch.tensor([[1.0, 2.0], [500.0, -500.0]])
    arrived = quantise_rows(values, torch.tensor([True, False]), bits=8)
    torch.testing.assert_close(arrived[0], values[0])
    assert arrived[1].tolist() == [0.0, 0.0]
    assert quantise_rows(values, torch.tensor([False, False]), bits=8) is values


def test_what_is_not_finite_is_left_for_the_server_to_refuse():
    values = torch.tensor([[1.0, math.nan]])
    assert quantise_rows(values, torch.tensor([True]), bits=4).isnan().any()


def test_kfl_sends_few_levels_both_ways_and_trains_on_them(toy, play):
    coarse = play(Kfl(bits_per_value=2), toy, [[0, 1, 2], [0, 1]])
    for upload in coarse.uploads[0]:
        held = upload.arrays["means"][upload.arrays["counts"] > 0]
        assert 1 < len(held.unique()) <= 4
    exact = play(Kfl(), toy, [[0, 1, 2], [0, 1]])
    name = "body.0.weight"
    assert not torch.equal(coarse.devices[0][name], exact.devices[0][name])
    # The server averages what arrived and keeps that exactly; only the message is coarse.
    sent = Kfl(bits_per_value=2).broadcast(coarse.server)
    known = coarse.server["known"]
    assert len(sent["knowledge"][known].unique()) <= 4 < len(coarse.server["knowledge"][known].unique())
    assert torch.equal(Kfl().broadcast(exact.server)["knowledge"], exact.server["knowledge"])


def test_many_bits_are_as_good_as_all(toy, play):
    fine, exact = (play(Kfl(bits_per_value=bits), toy, [[0, 1, 2], [0, 1]]) for bits in (24, 32))
    torch.testing.assert_close(fine.server["knowledge"], exact.server["knowledge"], rtol=1e-4, atol=1e-5)


def test_draws_have_names(toy):
    """The same device and round quantise alike, another round does not."""
    algorithm = Kfl(bits_per_value=1)
    means, counts = torch.rand(4, 5), torch.ones(4)

    def sent(number) -> Upload:
        return algorithm._upload(3, means, counts, RoundKey(0, number))

    assert torch.equal(sent(1).arrays["means"], sent(1).arrays["means"])
    assert not torch.equal(sent(1).arrays["means"], sent(2).arrays["means"])


def test_bits_are_charged_with_the_range(toy):
    profile = toy.engine.profile(0)
    values = 4 * 5
    costs = {bits: Kfl(bits_per_value=bits).cost(profile, real_work=False) for bits in (32, 8)}
    assert costs[32].bits_up == costs[32].bits_down == 32 * values
    assert costs[8].bits_up == costs[8].bits_down == 8 * values + 64 == message_bits(values, 8)


@pytest.mark.parametrize("bits", [0, 33, -4])
def test_impossible_numbers_of_bits_are_refused(bits):
    with pytest.raises(ConfigError, match="bits_per_value"):
        Kfl(bits_per_value=bits).validate()


@settings(deadline=None, max_examples=80)
@given(st.lists(numbers, min_size=1, max_size=4), st.integers(1, 32))
def test_what_is_packed_is_what_is_declared_and_charged_and_lies_on_the_grid(parts, bits):
    sizes, values = [len(part) for part in parts], torch.tensor([value for part in parts for value in part])
    sent = pack(values, sizes, bits)
    declared = packed_format(sizes, bits)
    assert {name: (tuple(value.shape), str(value.dtype)) for name, value in sent.items()} == {
        name: (form.shape, f"torch.{form.dtype}") for name, form in declared.items()
    }
    assert sum(8 * value.numel() * value.element_size() for value in sent.values()) == packed_bits(sizes, bits)
    arrived = unpack(sent, sizes, bits)
    if bits == 32:
        assert torch.equal(arrived, values.double())
        return
    start = 0
    for size, scale in zip(sizes, sent["scales"].double().tolist(), strict=True):
        part, exact = arrived[start : start + size], values.double()[start : start + size]
        start += size
        if scale == 0:
            assert part.abs().max() == 0
            continue
        # Nearest: within one scale of every value that the grid reaches, and at its end beyond.
        reach = scale * 2**bits
        off = (part - exact.clamp(-reach, reach)).abs()
        assert float(off.max()) <= scale * (1 + 1e-4) + 1e-6 * float(exact.abs().max())


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_no_scale_is_much_better_than_the_chosen_one(bits):
    """Against a fine search over scales, on normal values and on values with a heavy tail."""
    draw = torch.Generator().manual_seed(bits)
    for values in (torch.randn(500, generator=draw), torch.randn(500, generator=draw) ** 3):
        lost = float((unpack(pack(values, [500], bits), [500], bits) - values).square().sum())
        grid = torch.arange(-(2**bits) + 1, 2**bits, 2.0)
        tried = torch.linspace(0.001, 1.2, 2400)[:, None] * values.abs().max() / (1 if bits == 1 else 2**bits - 1)
        codes = (2 * torch.floor(values / tried / 2) + 1).clamp(grid[0], grid[-1])
        best = float((codes * tried - values).square().sum(1).min())
        assert lost <= 1.2 * best


def test_what_is_not_finite_arrives_as_such():
    assert not torch.isfinite(unpack(pack(torch.tensor([1.0, math.nan]), [2], 1), [2], 1)).any()
    assert not torch.isfinite(unpack(pack(torch.tensor([1.0, math.inf]), [2], 4), [2], 4)).any()
