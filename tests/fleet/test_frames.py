"""Frames: what goes in comes out, and untrusted bytes are read or refused without costing memory or code."""

import json
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kfl_fleet.messages.frames import DTYPES, INLINE_BYTES, pack, pack_all, size_bytes, unpack
from kfl_fleet.messages.protocol import RefusedError

SENDABLE = [np.dtype(name) for name in DTYPES]
plain = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def frame(content, squeezed=False, size=None):
    start = struct.pack("<2sBBQ", b"KF", squeezed, 0, len(content) if size is None else size)
    return start + (zlib.compress(content) if squeezed else content)


def content(header, numbers=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + numbers


@given(
    st.dictionaries(st.text(max_size=9), plain, max_size=4),
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.sampled_from(SENDABLE).flatmap(
            lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
        ),
        max_size=3,
    ),
)
@settings(max_examples=150)
def test_what_goes_in_comes_out_bit_for_bit(values, found):
    found = {name: np.array(array) for name, array in found.items()}
    table, back = unpack(pack(values, {name: torch.from_numpy(array) for name, array in found.items()}))
    assert table == values
    assert back.keys() == found.keys()
    for name, array in found.items():
        assert back[name].array().dtype == array.dtype
        assert back[name].array().tobytes() == array.tobytes()
        assert back[name].shape == array.shape


def test_absent_classes_cost_little_and_noise_is_left_as_it_is():
    means = torch.zeros(10, 64)
    means[3] = torch.randn(64)
    assert size_bytes(pack({}, {"means": means})) < 450
    noise = torch.randn(10, 64)
    assert size_bytes(pack({}, {"means": noise})) - 4 * 640 < 100


def test_large_arrays_are_a_part_of_their_own_that_messages_have_in_common():
    weights = {"w": torch.randn(INLINE_BYTES // 4 + 1)}
    messages = pack_all({0: {"round": 1}, 1: {"round": 2}}, weights)
    assert messages[0][1] is messages[1][1]
    assert [unpack(parts)[0]["round"] for parts in messages.values()] == [1, 2]
    assert torch.equal(torch.from_numpy(unpack(messages[1])[1]["w"].array()), weights["w"])


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused_in_a_sentence(data):
    for parts in ((data,), (frame(data),), (frame(data, squeezed=True),), (frame(content(data)),)):
        try:
            unpack(parts)
        except RefusedError as problem:
            assert "\n" not in str(problem)


GOOD = {"values": {}, "arrays": [["x", "float32", [2]]]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(content(GOOD, bytes(8)))[:-1], "not as large as it says"),
        (frame(content(GOOD, bytes(9))), "do not add up"),
        (frame(content(GOOD, bytes(7))), "do not add up"),
        (frame(content({**GOOD, "arrays": [["x", "object", [1]]]}, bytes(8))), "type or shape"),
        (frame(content({**GOOD, "arrays": [["x", "float32", [-1]]]}, bytes(8))), "length that is not one"),
        (frame(content({**GOOD, "arrays": [["x", "float32", [2]]] * 2}, bytes(16))), "do not add up"),
        (frame(content({**GOOD, "arrays": [["x", "float32", [2**30] * 9]]}, bytes(8))), "do not add up"),
        (frame(content({**GOOD, "values": []}, bytes(8))), "header"),
        (frame(content(b"[" * 100_000)), "nested too deeply"),
        (frame(content(b'{"values": {"joule": -' + b"9" * 400 + b'}, "arrays": []}')), "more than 64 bits"),
        (frame(b"\xff\xff\xff\xff"), "header"),
        (b"KF", "too short"),
        (b"PK" + bytes(30), "not one of kfl's"),
        (frame(b"rubbish", size=10**9 * 2), "2000000000 bytes"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_reason(data, said):
    with pytest.raises(RefusedError, match=said):
        unpack((data,))


def test_a_small_frame_cannot_become_a_large_one():
    bomb = frame(content({"values": {}, "arrays": [["x", "uint8", [10**8]]]}, bytes(10**8)), squeezed=True)
    assert len(bomb) < 200_000
    with pytest.raises(RefusedError, match="where 65536 are enough"):
        unpack((bomb,), 1 << 16)
    liar = frame(bytes(10**6), squeezed=True, size=100)
    with pytest.raises(RefusedError, match="not as large as it says"):
        unpack((liar,), 1 << 16)
