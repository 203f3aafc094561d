"""Knowledge in few bits: how wrong it can be, that random rounding is right on average, and that it happens."""

from __future__ import annotations

import math
import operator
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import ALGORITHMS, FedAvg, Kfl, Upload
from kfl.algorithms.quantize import (
    Quantized,
    encode,
    pack,
    packed_bits,
    packed_format,
    quantize_rows,
    unpack,
)
from kfl.algorithms.uploads import message_bits, sent_bits
from kfl.engine import RoundKey
from kfl.engine.base import ClassStatistics
from tests.algorithms.conftest import build, normalised

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


@settings(max_examples=80)
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
    arrived = quantize_rows(values, torch.tensor([True, False]), bits=8)
    torch.testing.assert_close(arrived[0], values[0])
    assert arrived[1].tolist() == [0.0, 0.0]
    assert quantize_rows(values, torch.tensor([False, False]), bits=8) is values


def test_what_is_not_finite_is_left_for_the_server_to_refuse():
    values = torch.tensor([[1.0, math.nan]])
    assert quantize_rows(values, torch.tensor([True]), bits=4).isnan().any()


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
    """The same device and round quantize alike, another round does not."""
    algorithm = Kfl(bits_per_value=1)
    means, counts = torch.rand(4, 5), torch.ones(4)

    def sent(number) -> Upload:
        return algorithm.protect(3, ClassStatistics(means, counts), RoundKey(0, number))

    assert torch.equal(sent(1).arrays["means"], sent(1).arrays["means"])
    assert not torch.equal(sent(1).arrays["means"], sent(2).arrays["means"])


@settings(max_examples=80)
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
    for bits in (1, 4, 8, 9, 31):  # and its scale says what is wrong
        assert pack(torch.tensor([1.0, -math.inf]), [2], bits)["scales"].tolist() == [math.inf]


@pytest.mark.parametrize(
    ("bits", "parts", "scales", "sent"),
    [
        (1, [[1, -1, 1, 1, -1, -1, -1, -1, 1]], [1], [0b00001101, 0b1]),
        (2, [[-3, -1, 1, 3, 3]], [1], [0b11_10_01_00, 0b11]),
        (3, [[7, -7, 1], [-3.5, 1.5]], [1, 0.5], [0b00_000_111, 0b101_000_1]),
        (8, [[255, -255, 1]], [1], [255, 0, 128]),
        (9, [[511, 1, 3, -1]], [1], [0b11111111, 0b0000000_1, 0b000001_10, 0b11111_100, 0b0111]),
        (12, [[4095, -4095]], [1], [255, 15, 0]),
        (4, [[], [15, -15]], [0, 1], [0b0000_1111]),
        (4, [[1e-60, -1e-60], [0, 0]], [0, 0], [0, 0]),
        (1, [[0, 0]], [0], [0]),
    ],
)
def test_codes_go_into_bytes_from_the_lowest_bit_on(bits, parts, scales, sent):
    """Written down literally: both ends of a fleet must agree on it, whichever version of the program they run."""
    sizes = [len(part) for part in parts]
    values = torch.tensor([value for part in parts for value in part], dtype=torch.float64)
    found = pack(values, sizes, bits)
    assert found["scales"].tolist() == scales and found["codes"].tolist() == sent
    assert unpack(found, sizes, bits).tolist() == values.float().tolist()


def test_halfway_between_two_points_of_the_grid_the_larger_is_sent():
    values = torch.tensor([511.0, 0.0, 2.0, -2.0])
    assert unpack(pack(values, [4], 9), [4], 9).tolist() == [511.0, 1.0, 3.0, -1.0]


def best_of_those_tried(values, bits):
    """In plain Python: 24 grids, each 0.9 of the one before, and for the codes of each the scale that suits best."""
    exact, top, found = [abs(value) for value in values.double().tolist()], 2**bits - 1, []
    for power in range(24):
        tried = max(exact) / top * 0.9**power
        codes = [min(2 * math.floor(value / tried / 2) + 1, top) for value in exact]
        best = sum(map(operator.mul, codes, exact)) / sum(code**2 for code in codes)
        lost = sum((best * code - value) ** 2 for code, value in zip(codes, exact, strict=True))
        found.append((lost, best))
    return min(found)[1]


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_the_scale_is_the_best_of_those_that_are_tried(bits):
    """Scaling all values scales the choice, so that small updates are treated like large ones."""
    draw = torch.Generator().manual_seed(bits)
    for values in (
        torch.randn(60, generator=draw) ** 3,
        torch.rand(60, generator=draw),
        torch.randn(3, generator=draw),
    ):
        for factor in (1.0, 2.0**-30, 2.0**30):
            (scale,) = pack(factor * values, [len(values)], bits)["scales"].tolist()
            assert scale == pytest.approx(factor * best_of_those_tried(values, bits), rel=1e-6)


def test_above_eight_bits_the_grid_reaches_the_largest_value():
    values = torch.tensor([1000.0, *[0.01 * place for place in range(-40, 41)]])
    for bits in (8, 9, 31):
        (scale,) = pack(values, [len(values)], bits)["scales"].tolist()
        reaches = scale * (2**bits - 1)
        assert (reaches == pytest.approx(1000.0, rel=1e-6)) == (bits > 8)
    assert pack(values, [len(values)], 32)["values"].equal(values)


@pytest.mark.parametrize("bits", [1, 4, 31])
def test_equal_values_need_no_grid(bits):
    for draw in (None, torch.Generator().manual_seed(0)):
        sent = encode(torch.full((2, 3), 2.5), bits, draw)
        assert sent.codes.tolist() == [[0, 0, 0]] * 2 and sent.codes.dtype == torch.int64
        assert sent.decode().tolist() == [[2.5] * 3] * 2


def test_a_draw_that_rounds_to_one_still_gives_a_code_that_fits():
    """With 31 bits the largest value and a draw just below 1 add up to 2^31. Seed 286 has such a draw."""
    values = torch.ones(100_001)
    values[0] = 0.0
    sent = encode(values, 31, torch.Generator().manual_seed(286))
    assert int(sent.codes.max()) == 2**31 - 1


def test_rounding_at_random_takes_one_draw_of_float64_for_each_value_in_turn():
    """Draws are named, so that a run can be repeated: other numbers from the same name would be another run."""
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    draws = torch.rand(3, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    low, high = float(values.min()), float(values.max())
    places = (values.double() - low) / (high - low) * 31
    wanted = places.floor() + (places - places.floor() + draws >= 1)
    assert encode(values, 5, torch.Generator().manual_seed(2)).codes.tolist() == wanted.tolist()


def test_what_is_sent_is_float32_whatever_type_a_script_prefers():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        sent = pack(torch.tensor([0.1, -0.3, 0.2]), [2, 1], bits=4)
        whole = pack(torch.tensor([0.1, -0.3, 0.2]), [2, 1], bits=32)
    finally:
        torch.set_default_dtype(before)
    assert sent["scales"].dtype == whole["values"].dtype == torch.float32 and sent["codes"].dtype == torch.uint8


def test_codes_decode_to_equal_steps_between_the_ends():
    grid = Quantized(torch.arange(8), -1.0, 2.5, bits=3).decode()
    assert grid.dtype == torch.float32 and grid.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


def test_with_all_bits_values_are_left_alone():
    values, rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([True, True, False])
    assert quantize_rows(values, rows, bits=32) is values
    fine = quantize_rows(values, rows, bits=31)
    assert fine is not values and fine[2].tolist() == [0.0] * 4
    torch.testing.assert_close(fine[:2], values[:2])
    some = torch.tensor([[1.0, 2.0], [1.0, math.inf]])
    assert quantize_rows(some, torch.tensor([True, True]), bits=2) is some
    assert quantize_rows(some, torch.tensor([True, False]), bits=2).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert [message_bits(10, bits) for bits in (31, 32)] == [310 + 64, 320]


SENDING = [name for name, cls in ALGORITHMS.items() if "bits_per_value" in {one.name for one in fields(cls)}]


def world_of(algorithm, toy, mixed_toy):
    return (mixed_toy if algorithm.name == "shared-stem" else toy).of(algorithm)


def in_bits(name, bits):
    more = {"fedkd": {"proxy_per_class": 3}, "shared-stem": {"budget_bits": 10**6}}.get(name, {})
    return ALGORITHMS[name](bits_per_value=bits, local_steps=2, **more)


@pytest.mark.parametrize("name", SENDING)
def test_few_bits_are_sent_declared_and_charged_alike(name, toy, mixed_toy, play):
    sizes = {}
    for bits in (1, 4, 16, 32):
        algorithm = in_bits(name, bits)
        world = world_of(algorithm, toy, mixed_toy)
        found = play(algorithm, world, [[0, 1, 2], [2, 3]])
        assert algorithm.upload_bits == bits and not any(found.rejections)
        formats = algorithm.upload_format(found.server)
        profiles = [world.engine.profile(device) for device in range(5)]
        costs = algorithm.costs(profiles, found.server, real_work=False)
        for upload in found.uploads[1]:
            assert sent_bits(upload, formats) == costs[upload.device].bits_up
        sizes[bits] = costs[0].bits_up
    assert sizes[1] < sizes[4] < sizes[16] < sizes[32]
    assert sizes[4] < 0.75 * sizes[32]


@pytest.mark.parametrize("name", SENDING)
def test_many_bits_give_nearly_what_all_bits_give(name, toy, mixed_toy, play):
    servers = []
    for bits in (32, 20):
        algorithm = in_bits(name, bits)
        servers.append(play(algorithm, world_of(algorithm, toy, mixed_toy), [[0, 1, 2, 3, 4]] * 3).server)
    for key, exact in servers[0].items():
        torch.testing.assert_close(servers[1][key].double(), exact.double(), rtol=1e-3, atol=1e-3)
    assert any(not torch.equal(servers[0][key], servers[1][key]) for key in servers[0])


def test_what_signs_take_from_an_update_of_weights_is_in_the_next(toy, play):
    """With error feedback the sum of what arrived is the sum of the updates, but for what the device still keeps."""
    algorithm = FedAvg(bits_per_value=1, local_steps=2)
    found = play(algorithm, toy, [[3]] * 6)
    start = algorithm.server_init(toy.engine, toy.seed)
    arrived = torch.cat([(found.server[name] - value).flatten() for name, value in start.items()])
    server, state, true = start, algorithm.device_init(toy.engine, 3, toy.seed), 0.0
    for number in range(6):
        trained = toy.engine.train([3], [server], algorithm.objective(), algorithm.sgd(), RoundKey(toy.seed, number))[0]
        true = true + torch.cat([(trained[name] - server[name]).flatten() for name in server])
        (state,), uploads = algorithm.local_update(server, [3], [state], toy.engine, RoundKey(toy.seed, number))
        server = algorithm.aggregate(server, uploads, engine=toy.engine, key=RoundKey(toy.seed, number))[0]
    torch.testing.assert_close(arrived + state["feedback/stem"], true, rtol=1e-4, atol=1e-5)
    assert algorithm.predictor(server, state).keys() == server.keys()


def test_running_statistics_travel_as_they_are(play):
    """A variance that a coarse grid makes negative is none."""
    toy = build(network=normalised)
    found = play(FedAvg(bits_per_value=1), toy, [[0, 1, 2, 3, 4]] * 4)
    formats = FedAvg(bits_per_value=1).upload_format(found.server)
    assert {"codes", "scales", "body.1.running_var", "body.1.num_batches_tracked"} <= set(formats)
    assert float(found.server["body.1.running_var"].min()) > 0
