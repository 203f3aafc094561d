"""Secure sums without a fleet: masks cancel, drop-outs up to the threshold, and no device reveals too much."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kfl_fleet.secure import (
    DeviceSum,
    Grid,
    Keys,
    Layout,
    Revealed,
    ServerSum,
    SumError,
    pack_boxes,
    pack_devices,
    pack_keys,
    threshold_of,
    traffic,
    unpack_boxes,
    unpack_devices,
    unpack_keys,
)
from kfl_fleet.secure.cipher import PRIME_25519, SMALL_ORDER, KeyPair
from kfl_fleet.secure.device import add_common_mask
from kfl_fleet.secure.shamir import PRIME, join, liars, split

SEED = st.integers(0, 2**32 - 1)


def play(
    vectors: np.ndarray,
    *,
    bits: int,
    share: float,
    neighbours: int | None = None,
    gone: dict[str, Collection[int]] | None = None,
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """A whole sum, through the bytes that would travel; `gone` says who does not answer a step."""
    away = {step: set((gone or {}).get(step, ())) for step in ("share", "mask", "reveal")}
    server = ServerSum(share, bits, vectors.shape[1], neighbours)
    devices = [DeviceSum(server.session, number) for number in range(len(vectors))]
    opened = server.open({number: Keys.unpack(device.advertise().pack()) for number, device in enumerate(devices)})
    boxes = {k: devices[k].share(*asked) for k, asked in opened.items() if k not in away["share"]}
    masked = {k: devices[k].mask(own, vectors[k]) for k, own in server.route(boxes).items() if k not in away["mask"]}
    revealed = {
        k: Revealed.unpack(devices[k].reveal(left).pack())
        for k, left in server.survivors(masked).items()
        if k not in away["reveal"]
    }
    return server.total(revealed), masked


@st.composite
def sums(draw: st.DrawFn) -> tuple[np.ndarray, int, float, dict[str, set[int]]]:
    count, bits = draw(st.integers(3, 8)), draw(st.sampled_from([32, 64]))
    values = np.random.default_rng(draw(SEED)).integers(0, 2**bits - 1, (count, draw(st.integers(1, 9))), dtype="u8")
    someone = st.sets(st.integers(0, count - 1), max_size=count // 2)
    gone = {step: draw(someone) for step in ("share", "mask", "reveal")}
    return values.astype(f"<u{bits // 8}"), bits, draw(st.floats(0.1, 1.0)), gone


@settings(max_examples=80)
@given(sums())
def test_any_dropouts_up_to_the_threshold_are_survived_and_one_more_is_not(
    case: tuple[np.ndarray, int, float, dict[str, set[int]]],
) -> None:
    vectors, bits, share, gone = case
    everyone = set(range(len(vectors)))
    needed = max(3, len(everyone) // 2 + 1, int(np.ceil(share * len(everyone) - 1e-9)))
    arrived = everyone - gone["share"] - gone["mask"]
    if len(arrived - gone["reveal"]) < needed:
        with pytest.raises(SumError, match=r"Only \d"):
            play(vectors, bits=bits, share=share, gone=gone)
        return
    total, _ = play(vectors, bits=bits, share=share, gone=gone)
    expected = [sum(int(vectors[k, i]) for k in arrived) % 2**bits for i in range(vectors.shape[1])]
    assert total.tolist() == expected


@pytest.mark.parametrize("step", ["share", "mask", "reveal"])
def test_thirty_percent_of_ten_may_drop_out_at_any_step_and_forty_may_not(step: str) -> None:
    vectors = np.arange(80, dtype="<u4").reshape(10, 8)
    total, _ = play(vectors, bits=32, share=2 / 3, gone={step: {0, 4, 9}})
    left = [k for k in range(10) if step == "reveal" or k not in {0, 4, 9}]
    assert total.tolist() == vectors[left].sum(axis=0).tolist()
    with pytest.raises(SumError, match=r"Only 6 of 10 devices .* and 7 are needed"):
        play(vectors, bits=32, share=2 / 3, gone={step: {0, 3, 4, 9}})


@settings(max_examples=15)
@given(SEED, st.sampled_from([4, 6, 8]), st.sets(st.integers(0, 11), max_size=2))
def test_masks_among_neighbours_alone_cancel_too(seed: int, neighbours: int, gone: set[int]) -> None:
    vectors = np.random.default_rng(seed).integers(0, 2**32 - 1, (12, 5), dtype=np.uint32)
    total, _ = play(vectors, bits=32, share=0.5, neighbours=neighbours, gone={"mask": gone})
    left = [k for k in range(12) if k not in gone]
    assert total.tolist() == (vectors[left].astype("u8").sum(axis=0) % 2**32).tolist()


def test_a_masked_vector_says_nothing_about_the_vector() -> None:
    """All devices send zeros: what travels is spread evenly over all bytes, and unlike in every sum."""
    _, first = play(np.zeros((4, 2**14), dtype="<u4"), bits=32, share=0.7)
    _, again = play(np.zeros((4, 2**14), dtype="<u4"), bits=32, share=0.7)
    for masked in [*first.values(), *again.values()]:
        seen = np.bincount(masked.view(np.uint8), minlength=256)
        expected = masked.nbytes / 256
        chi_square = float(((seen - expected) ** 2 / expected).sum())
        assert 120 < chi_square < 450  # 255 degrees of freedom: beyond 8 standard deviations
    assert all(not np.array_equal(first[k], again[k]) for k in first)


def test_nobody_gives_up_both_secrets_of_one_device() -> None:
    server = ServerSum(2 / 3, 32, 2)
    devices = [DeviceSum(server.session, k) for k in range(6)]
    opened = server.open({k: device.advertise() for k, device in enumerate(devices)})
    routed = server.route({k: devices[k].share(*opened[k]) for k in range(6)})
    masked = {k: devices[k].mask(routed[k], np.zeros(2, dtype="<u4")) for k in range(5)}
    for k, left in server.survivors(masked).items():
        given_up = devices[k].reveal(left)
        assert set(given_up.seeds) == {0, 1, 2, 3, 4} and set(given_up.keys) == {5}
        with pytest.raises(SumError, match="revealed"):  # the same survivors or others: once is all
            devices[k].reveal([0, 1, 2, 3, k])


def test_a_vector_that_comes_late_is_not_bare() -> None:
    """The server takes device 3 for lost, is given the key of its masks in common, and then its vector arrives."""
    server = ServerSum(0.7, 32, 2**14)
    devices = [DeviceSum(server.session, k) for k in range(4)]
    keys = {k: device.advertise() for k, device in enumerate(devices)}
    opened = server.open(keys)
    routed = server.route({k: devices[k].share(*opened[k]) for k in range(4)})
    masked = {k: devices[k].mask(routed[k], np.zeros(2**14, dtype="<u4")) for k in range(4)}
    late = masked.pop(3)
    revealed = {k: devices[k].reveal(left) for k, left in server.survivors(masked).items()}
    assert not server.total(revealed).any()
    pair = KeyPair.of(join({k: own.keys[3] for k, own in revealed.items()}, 3), server.session)
    assert pair.public == keys[3].mask
    bare = np.zeros(2**14, dtype="<u4")
    for peer in range(3):
        add_common_mask(bare, pair, 3, peer, keys[peer].mask, server.session)
    rest = (late - bare).view(np.uint8)  # only its own mask is left, and no device has a share of its seed
    assert all(3 not in own.seeds for own in revealed.values())
    seen, expected = np.bincount(rest, minlength=256), len(rest) / 256
    assert 120 < float(((seen - expected) ** 2 / expected).sum()) < 450


def started(count: int = 4) -> tuple[DeviceSum, dict[int, Keys], dict[int, DeviceSum]]:
    """Device 0 of some that have advertised, the keys of the others, and the others."""
    devices = {k: DeviceSum(b"s" * 16, k) for k in range(count)}
    keys = {k: device.advertise() for k, device in devices.items()}
    first = devices.pop(0)
    return first, {k: keys[k] for k in devices}, devices


def test_a_device_refuses_what_would_expose_it() -> None:
    device, peers, _ = started()
    with pytest.raises(SumError, match="threshold of this sum is 2, but must be from 3 to 4"):
        device.share(peers, 2)  # no majority
    device, peers, _ = started(2)
    with pytest.raises(SumError, match="threshold of this sum is 2, but must be from 3"):
        device.share(peers, 2)  # two devices hide nothing from each other
    device, peers, _ = started()
    with pytest.raises(SumError, match="keys of this sum are the same"):
        device.share({**peers, 3: peers[2]}, 3)
    device, peers, _ = started()
    with pytest.raises(SumError, match="not one that a device can have"):
        device.share({**peers, 3: Keys(bytes(32), peers[3].mask)}, 3)  # X25519's point of order one
    device, peers, others = started()
    device.share(peers, 3)
    with pytest.raises(SumError, match="shared in this sum, so it cannot"):
        device.reveal([0, 1, 2])  # before anything was masked
    everyone = {**peers, 0: Keys(device._seal.public, device._mask.public)}
    boxes = {k: other.share({v: everyone[v] for v in everyone if v != k}, 3)[0] for k, other in others.items()}
    with pytest.raises(SumError, match="not sealed for this device, or was changed"):
        device.mask({**boxes, 1: boxes[2]}, np.zeros(3, dtype="<u4"))
    with pytest.raises(SumError, match="masked in this sum, so it cannot"):
        device.mask(boxes, np.zeros(3, dtype="<u4"))  # a second vector under the same masks would give a difference


def test_a_device_reveals_nothing_for_survivors_that_cannot_be() -> None:
    for survivors, words in (((0, 1), "Only 2 devices are left, and 3"), ((0, 1, 9), "not devices that masked")):
        device, peers, others = started()
        device.share(peers, 3)
        everyone = {**peers, 0: Keys(device._seal.public, device._mask.public)}
        boxes = {k: other.share({v: everyone[v] for v in everyone if v != k}, 3)[0] for k, other in others.items()}
        device.mask(boxes, np.zeros(3, dtype="<u4"))
        with pytest.raises(SumError, match=words):
            device.reveal(survivors)


def respelled(key: bytes) -> bytes:
    """The same key with the bit that X25519 ignores."""
    return key[:-1] + bytes([key[-1] ^ 0x80])


def test_a_key_has_one_spelling_and_whoever_sends_another_is_at_fault() -> None:
    device, peers, _ = started()
    with pytest.raises(SumError, match="not in the form that a device gives it"):
        device.share({**peers, 3: Keys(peers[3].seal, respelled(peers[2].mask))}, 3)
    bad = {
        "respelled": lambda keys: Keys(keys[4].seal, respelled(keys[4].mask)),
        "of another": lambda keys: Keys(keys[4].seal, keys[4].seal),
        "of small order": lambda keys: Keys(bytes(32), keys[4].mask),
        "of order eight": lambda keys: Keys(max(SMALL_ORDER - {PRIME_25519 - 1}).to_bytes(32, "little"), keys[4].mask),
        "above the prime": lambda keys: Keys(keys[4].seal, (2**255 - 18).to_bytes(32, "little")),
    }
    for change in bad.values():
        server = ServerSum(0.5, 32, 3)
        devices = [DeviceSum(server.session, k) for k in range(5)]
        keys = {k: device.advertise() for k, device in enumerate(devices)}
        opened = server.open({**keys, 4: change(keys)})
        assert set(server.faults) == {4} and set(opened) == {0, 1, 2, 3}
        routed = server.route({k: devices[k].share(*opened[k]) for k in opened})
        masked = {k: devices[k].mask(routed[k], np.ones(3, dtype="<u4")) for k in routed}
        revealed = {k: devices[k].reveal(left) for k, left in server.survivors(masked).items()}
        assert server.total(revealed).tolist() == [4, 4, 4]


def test_points_of_small_order_are_those_that_the_library_refuses() -> None:
    for point in SMALL_ORDER:
        with pytest.raises(SumError, match="not one that a device can have"):
            KeyPair.new().agree(point.to_bytes(32, "little"))


def flipped(share: bytes) -> bytes:
    return share[:-1] + bytes([share[-1] ^ 1])


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_wrong_share_is_left_out_and_names_who_gave_it(share: float) -> None:
    """Device 6 has dropped out, so that shares of its key are asked for; of seeds one more is needed to tell a liar."""
    for liar in range(6):
        server = ServerSum(share, 32, 3)
        devices = [DeviceSum(server.session, k) for k in range(7)]
        opened = server.open({k: device.advertise() for k, device in enumerate(devices)})
        routed = server.route({k: devices[k].share(*opened[k]) for k in range(7)})
        masked = {k: devices[k].mask(routed[k], np.full(3, k, dtype="<u4")) for k in range(6)}
        revealed = {k: devices[k].reveal(left) for k, left in server.survivors(masked).items()}
        seeds, keys = dict(revealed[liar].seeds), dict(revealed[liar].keys)
        if share == 0.5:  # 4 of 7 are needed, and 6 are there
            seeds[(liar + 1) % 6] = flipped(seeds[(liar + 1) % 6])
            total = server.total({**revealed, liar: Revealed(seeds, keys)}, doubtful=True)
            assert total.tolist() == [15, 15, 15] and set(server.faults) == {liar}
        else:  # all 6 are needed: which is wrong is unknown
            keys[6] = flipped(keys[6])
            with pytest.raises(SumError, match="do not belong together: one lies"):
                server.total({**revealed, liar: Revealed(seeds, keys)}, doubtful=True)


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(0, 4), st.booleans(), st.data())
def test_liars_are_named_where_shares_are_to_spare(
    threshold: int, spare: int, known: bool, data: st.DataObject
) -> None:
    secret, count = bytes(range(16)), threshold + spare
    shares = split(secret, threshold, list(range(count)))
    fits = (lambda found: found == secret) if known else None
    assert liars(shares, threshold, fits) == set()
    liar = data.draw(st.integers(0, count - 1))
    shares[liar] = data.draw(st.integers(0, PRIME - 1).filter(lambda n: n != int.from_bytes(shares[liar]))).to_bytes(17)
    if spare > 1 or (known and spare):
        assert liars(shares, threshold, fits) == {liar}
    elif spare or known:
        with pytest.raises(SumError, match="do not belong together"):
            liars(shares, threshold, fits)
    else:
        assert liars(shares, threshold, fits) == set(), "nothing to compare with: the sum's own check must notice"


def test_a_wrong_share_that_none_can_be_compared_with_is_noticed_in_the_sum() -> None:
    """Three devices of three: each share is needed."""
    layout = Layout({"values": (1,)}, {"values": 1.0}, devices=3, bits=32, checks=2, session=b"s")
    for number in range(20):
        server = ServerSum(1.0, 32, layout.length)
        devices = [DeviceSum(server.session, k) for k in range(3)]
        opened = server.open({k: device.advertise() for k, device in enumerate(devices)})
        routed = server.route({k: devices[k].share(*opened[k]) for k in range(3)})
        masked = {k: devices[k].mask(routed[k], layout.encode({"values": np.array([0.5])})) for k in range(3)}
        revealed = {k: devices[k].reveal(left) for k, left in server.survivors(masked).items()}
        assert layout.decode(server.total(revealed))[0]["values"].tolist() == [1.5]
        seeds = {**revealed[1].seeds, number % 3: flipped(revealed[1].seeds[number % 3])}
        with pytest.raises(SumError, match=r"is not that of its devices' vectors|cannot be restored"):
            layout.decode(server.total({**revealed, 1: Revealed(seeds, revealed[1].keys)}))


@settings(max_examples=40)
@given(SEED, st.sampled_from([32, 64]), st.integers(2, 20))
def test_sums_of_checked_vectors_pass_and_any_other_does_not(seed: int, bits: int, devices: int) -> None:
    draw = np.random.default_rng(seed)
    layout = Layout({"values": (4,)}, {"values": 1.0}, devices, bits, checks=2, session=draw.bytes(16))
    values = draw.uniform(-1, 1, (devices, 4))
    total = np.zeros(layout.length, dtype=f"<u{bits // 8}")
    for own in values:
        total += layout.encode({"values": own})
    found, _ = layout.decode(total)
    assert np.abs(found["values"] - values.sum(axis=0)).max() <= layout.grid("values").error
    place = draw.integers(layout.length)
    total[place] ^= total.dtype.type(1 << int(draw.integers(bits)))
    with pytest.raises(SumError, match="is not that of its devices"):
        layout.decode(total)


def test_two_devices_are_no_sum() -> None:
    with pytest.raises(SumError, match="fewer than 3 hides nothing"):
        ServerSum(0.5, 32, 1).open({k: DeviceSum(b"", k).advertise() for k in range(2)})


# ── Shamir ───────────────────────────────────────────────────────────────────


def solved(points: dict[int, int]) -> int:
    """f(0) by Gaussian elimination of the Vandermonde system, not by Lagrange's formula."""
    rows = [[pow(x, power, PRIME) for power in range(len(points))] + [y] for x, y in points.items()]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        inverse = pow(rows[i][i], -1, PRIME)
        rows[i] = [value * inverse % PRIME for value in rows[i]]
        for r in range(len(rows)):
            if r != i:
                rows[r] = [(a - rows[r][i] * b) % PRIME for a, b in zip(rows[r], rows[i], strict=True)]
    return rows[0][-1]


@settings(max_examples=40)
@given(st.binary(min_size=16, max_size=16), st.sets(st.integers(0, 600), min_size=1, max_size=7), st.data())
def test_shares_are_points_of_one_polynomial_and_any_enough_of_them_give_the_secret(
    secret: bytes, holders: set[int], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, len(holders)))
    shares = split(secret, threshold, sorted(holders))
    some = data.draw(st.permutations(sorted(holders)))[:threshold]
    assert join({holder: shares[holder] for holder in some}, threshold) == secret
    assert solved({holder + 1: int.from_bytes(shares[holder]) for holder in some}).to_bytes(16) == secret
    if threshold > 1:
        fewer = {holder + 1: int.from_bytes(shares[holder]) for holder in some[1:]}
        assert solved(fewer) != int.from_bytes(secret)  # the polynomial is of no lower degree
        with pytest.raises(SumError, match=f"{threshold - 1} shares, and {threshold} are needed"):
            join({holder: shares[holder] for holder in some[1:]}, threshold)


@settings(max_examples=20)
@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_one_share_too_few_fits_every_secret(secret: bytes, other: bytes) -> None:
    """For whatever secret one may guess there is a last share that makes it the answer."""
    shares = split(secret, 3, [0, 1, 2, 3])
    x, first, second = 4, int.from_bytes(shares[0]), int.from_bytes(shares[1])  # f(1), f(2); the last point is f(4)
    guess = int.from_bytes(other)
    # f(x) = guess + ax + bx² through both points
    b = (second - 2 * first + guess) * pow(2, -1, PRIME) % PRIME
    a = (first - guess - b) % PRIME
    forged = ((guess + a * x + b * x * x) % PRIME).to_bytes(17)
    assert join({0: shares[0], 1: shares[1], 3: forged}, 3) == other


# ── Numbers ──────────────────────────────────────────────────────────────────


@settings(max_examples=80)
@given(SEED, st.integers(1, 600), st.sampled_from([32, 64]), st.floats(1e-6, 1e9), st.floats(0.0, 3.0))
def test_a_sum_of_codes_is_the_sum_of_clipped_values_within_the_stated_error(
    seed: int, devices: int, bits: int, bound: float, spread: float
) -> None:
    grid = Grid(bound, devices, bits)
    values = np.random.default_rng(seed).uniform(-1, 1, (devices, 6)) * bound * spread
    values[:, 0], values[:, 1] = bound, -bound  # the largest sums there are
    total, lost = np.zeros(6, dtype=f"<u{bits // 8}"), 0
    for own in values:
        code, clipped = grid.encode(own)
        total, lost = total + code, lost + clipped
    expected = np.clip(values, -bound, bound).sum(axis=0)
    rounding = devices * np.spacing(devices * bound)
    assert np.abs(grid.decode(total) - expected).max() <= grid.error + rounding
    assert lost == int((np.abs(values) > bound).sum())


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(1, 2**20), SEED)
def test_whole_numbers_are_exact(devices: int, most: int, seed: int) -> None:
    assume(devices * most < 2**30)
    grid = Grid(float(most), devices, 32)
    counts = np.random.default_rng(seed).integers(0, most, (devices, 4), endpoint=True).astype(np.float64)
    total = np.zeros(4, dtype="<u4")
    for own in counts:
        total = total + grid.encode(own)[0]
    assert grid.decode(total).tolist() == counts.sum(axis=0).tolist()


def test_a_sum_that_still_has_a_mask_in_it_is_not_taken_for_one() -> None:
    layout = Layout({"values": (50,)}, {"values": 4.0}, devices=5, bits=32)
    left_over = np.random.default_rng(0).integers(0, 2**32 - 1, layout.length, dtype=np.uint32)
    with pytest.raises(SumError, match="larger than 5 devices can make it"):
        layout.decode(layout.encode({"values": np.ones(50)}) + left_over)


def test_values_that_are_not_numbers_are_never_encoded() -> None:
    layout = Layout({"values": (2,)}, {"values": 4.0}, devices=5, bits=32)
    with pytest.raises(SumError, match="values has a value that is infinite or not a number"):
        layout.encode({"values": np.array([1.0, np.nan])})
    with pytest.raises(SumError, match=r"values has the shape \(3,\), not \(2,\)"):
        layout.encode({"values": np.ones(3)})


# ── What travels ─────────────────────────────────────────────────────────────


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=300), st.integers(0, 5).map(lambda n: n.to_bytes(4, "little") * 40)))
def test_strange_bytes_are_refused_in_a_sentence(data: bytes) -> None:
    for read in (Keys.unpack, Revealed.unpack, unpack_keys, unpack_boxes, unpack_devices):
        try:
            read(data)
        except SumError as problem:
            assert str(problem).endswith(".")


def test_the_traffic_of_a_sum_is_what_is_charged_for_it() -> None:
    server = ServerSum(2 / 3, 64, 7)
    devices = [DeviceSum(server.session, k) for k in range(5)]
    keys = {k: device.advertise() for k, device in enumerate(devices)}
    opened = server.open(keys)
    boxes = {k: devices[k].share(*opened[k]) for k in range(5)}
    routed = server.route(boxes)
    masked = {k: devices[k].mask(routed[k], np.zeros(7, dtype="<u8")) for k in range(5)}
    left = server.survivors(masked)
    given_up = devices[2].reveal(left[2])
    up = [keys[2].pack(), pack_boxes(boxes[2]), masked[2].tobytes(), given_up.pack()]
    down = [pack_keys(opened[2][0]), pack_boxes(routed[2]), pack_devices(left[2])]
    assert traffic(7, 64, 4) == (len(b"".join(up)), len(b"".join(down)))


def test_thresholds_are_majorities_of_at_least_three() -> None:
    for holders in range(3, 200):
        for share in (0.1, 0.5, 2 / 3, 1.0):
            found = threshold_of(share, holders)
            assert found >= 3 and 2 * found > holders and share * holders - 1e-6 <= found <= holders


def test_the_core_needs_neither_pytorch_nor_flower() -> None:
    code = "import sys, kfl_fleet.secure; sys.exit(bool({'torch', 'flwr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
