"""What devices send: which arrays a server takes, what it says of the others, and how many bits they take."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch

from kfl.algorithms import ArrayFormat, Rejection, Upload, usable, wire_size
from kfl.algorithms.uploads import MOST_SAMPLES, sent_bits

FORMATS = {
    "means": ArrayFormat((2, 3)),
    "steps": ArrayFormat((), "int64"),
    "counts": ArrayFormat((2,), "int64", "counts"),
    "samples": ArrayFormat((), "float64", "samples"),
}


def arrays(**other):
    """A sound upload with some arrays exchanged; those that are None are not there."""
    sound = {
        "means": torch.arange(6.0).reshape(2, 3),
        "steps": torch.tensor(4),
        "counts": torch.tensor([0, 5]),
        "samples": torch.tensor(5.0, dtype=torch.float64),
    }
    return {name: value for name, value in {**sound, **other}.items() if value is not None}


def means(value, dtype=torch.float32):
    return torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, value]], dtype=dtype)


BAD = {
    "missing values": ({"means": None}, "missing_array", {"array": "means"}),
    "missing counts": ({"counts": None}, "missing_array", {"array": "counts"}),
    "text": ({"means": "weights"}, "missing_array", {"array": "means"}),
    "list": ({"samples": [5.0]}, "missing_array", {"array": "samples"}),
    "sparse": ({"means": means(5.0).to_sparse()}, "missing_array", {"array": "means"}),
    "shape": ({"means": torch.zeros(3, 2)}, "shape", {"array": "means", "found": [3, 2], "expected": [2, 3]}),
    "counts of a class more": (
        {"counts": torch.zeros(3, dtype=torch.int64)},
        "shape",
        {"array": "counts", "found": [3], "expected": [2]},
    ),
    "nan": ({"means": means(math.nan)}, "not_finite", {"array": "means"}),
    "infinite": ({"means": means(math.inf)}, "not_finite", {"array": "means"}),
    "infinite below": ({"means": means(-math.inf)}, "not_finite", {"array": "means"}),
    "infinite when stored": ({"means": means(1e300, torch.float64)}, "not_finite", {"array": "means"}),
    "complex": ({"means": means(5.0).to(torch.complex64)}, "not_finite", {"array": "means"}),
    "complex counter": ({"steps": torch.tensor(4 + 0j)}, "not_finite", {"array": "steps"}),
    "a counter that is no number": ({"steps": torch.tensor(math.nan)}, "not_finite", {"array": "steps"}),
    "negative": ({"counts": torch.tensor([0, -1])}, "negative_count", {"array": "counts"}),
    "negative samples": ({"samples": torch.tensor(-0.1)}, "negative_count", {"array": "samples"}),
    "too many": ({"counts": torch.tensor([0, MOST_SAMPLES + 1])}, "too_many_samples", {"array": "counts"}),
    "too many samples": ({"samples": torch.tensor(2.0**54)}, "too_many_samples", {"array": "samples"}),
    "samples that are no number": ({"samples": torch.tensor(math.nan)}, "not_finite", {"array": "samples"}),
}
GOOD = {
    "sound": {},
    "no samples": {"counts": torch.tensor([0, 0]), "samples": torch.tensor(0.0, dtype=torch.float64)},
    "as many samples as can be": {"counts": torch.tensor([0, MOST_SAMPLES])},
    "values below 0": {"means": -means(1e38), "steps": torch.tensor(-3)},
    "values above any number of samples": {"means": means(3e38), "steps": torch.tensor(2**60)},
    "another type that fits": {"means": means(1e30, torch.float64)},
    "a counter as a fraction": {"steps": torch.tensor(4.5)},
    "integers for values": {"means": means(5.0).long()},
    "more than was asked for": {"more": torch.tensor(math.nan)},
    "noisy counts": {"counts": torch.tensor([0.5, 2.5])},
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_used_is_refused_with_a_code_and_its_facts(kind):
    spoilt, code, facts = BAD[kind]
    bad = Upload(9, arrays(**spoilt))
    uploads = [Upload(k, arrays()) for k in range(2)]
    for place in range(3):
        good, rejected = usable([*uploads[:place], bad, *uploads[place:]], FORMATS)
        assert good == uploads
        assert rejected == [Rejection(9, code, facts)]
    assert usable([bad], FORMATS) == ([], [Rejection(9, code, facts)])


def test_rows_without_weight_may_hold_anything_and_weights_are_judged_first():
    formats = {"means": ArrayFormat((2, 3), weight="counts"), "counts": ArrayFormat((2,), "int64", "counts")}
    odd = means(math.nan)
    fine, wrong = (Upload(k, {"means": odd, "counts": torch.tensor([1, k])}) for k in (0, 1))
    good, rejected = usable([fine, wrong], formats)
    assert good == [fine] and rejected == [Rejection(1, "not_finite", {"array": "means"})]
    negative = Upload(2, {"means": odd, "counts": torch.tensor([1, -1])})
    assert usable([negative], formats)[1] == [Rejection(2, "negative_count", {"array": "counts"})]


@pytest.mark.parametrize("kind", GOOD)
def test_what_can_be_used_is_taken_as_it_is(kind):
    uploads = [Upload(3, arrays()), Upload(4, arrays(**GOOD[kind]))]
    for some in (uploads, uploads[::-1], uploads[1:]):
        good, rejected = usable(some, FORMATS)
        assert rejected == [] and len(good) == len(some) and all(a is b for a, b in zip(good, some, strict=True))


@pytest.mark.parametrize("name", ["counts", "samples"])
def test_a_wrong_number_of_samples_is_found_where_nothing_else_is_sent(name):
    bad = Upload(9, {name: torch.full(FORMATS[name].shape, -1.0)})
    assert usable([bad], {name: FORMATS[name]}) == ([], [Rejection(9, "negative_count", {"array": name})])


def test_no_uploads_no_arrays_and_empty_arrays_are_fine():
    assert usable([], FORMATS) == ([], [])
    anything = [Upload(0, {}), Upload(1, {"x": torch.tensor(math.nan)})]
    assert usable(anything, {}) == (anything, [])
    empty = [Upload(0, {"means": torch.zeros(0, 3)})]
    assert usable(empty, {"means": ArrayFormat((0, 3))}) == (empty, [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_of_several_types_are_each_looked_at(bad):
    """Half and full precision in one upload: a value that is not finite is found in either."""
    formats = {"half": ArrayFormat((2,), "float16"), "full": ArrayFormat((2,))}
    sound = {"half": torch.ones(2, dtype=torch.float16), "full": torch.ones(2)}
    assert usable([Upload(0, sound)], formats)[1] == []
    for name, value in sound.items():
        spoilt = Upload(1, {**sound, name: torch.stack([value[0], torch.tensor(bad).to(value)])})
        assert usable([Upload(0, sound), spoilt], formats)[1] == [Rejection(1, "not_finite", {"array": name})]
    # 1e30 is a float32 and infinite as a half; 65,504 is the largest half.
    for largest, codes in ((65_504.0, []), (1e30, ["not_finite"])):
        upload = Upload(2, {**sound, "half": torch.tensor([1.0, largest])})
        assert [one.code for one in usable([upload], formats)[1]] == codes


def test_rejections_go_through_plain_values():
    uploads = [Upload(k, {}) for k in (5, 2)]
    _, rejected = usable(uploads, {"x": ArrayFormat((1,))})
    assert [one.to_dict() for one in rejected] == [{"device": k, "code": "missing_array", "array": "x"} for k in (5, 2)]
    assert Rejection(4, "busy").to_dict() == {"device": 4, "code": "busy"} and "busy" in Rejection(4, "busy").describe()
    assert Rejection.from_dict({"device": 4, "reason": "it was late"}).describe() == "it was late"


def quantized():
    with warnings.catch_warnings():  # PyTorch is about to drop them
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)


@pytest.mark.parametrize(
    ("found", "plain"),
    [
        *((torch.ones(2).to(kind), True) for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)),
        *((torch.ones(2).to(kind), True) for kind in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64)),
        *((torch.ones(2).to(kind), False) for kind in (torch.uint16, torch.uint32, torch.uint64)),
        *((torch.ones(2).to(kind), False) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)),
        (torch.ones(2).to_sparse(), False),
        (torch.ones(2, device="meta"), False),
        (quantized(), False),
        (None, False),
        ([1.0, 1.0], False),
        (1.0, False),
    ],
    ids=str,
)
def test_arrays_are_those_that_pytorch_computes_with_and_that_have_a_value_in_every_place(found, plain):
    kind = str(getattr(found, "dtype", "torch.float32")).removeprefix("torch.")
    form = {"a": ArrayFormat((2,), kind if plain else "float32")}
    codes = [one.code for one in usable([Upload(0, {"a": found})], form)[1]]
    assert codes == ([] if plain else ["missing_array"])


def test_a_format_like_an_array_has_its_shape_and_the_plain_name_of_its_type():
    assert ArrayFormat.like(torch.zeros(3, 1, dtype=torch.bfloat16)) == ArrayFormat((3, 1), "bfloat16")
    form = ArrayFormat((2,))
    assert (form.dtype, form.holds, form.noise, form.bits, form.weight) == ("float32", "values", 0.0, None, "")


HELD = torch.tensor([5, 0, 1, 0])


@pytest.mark.parametrize(
    ("array", "form", "bits"),
    [
        # As many bits as the type has, 32 at most; a truth value is one.
        *((torch.zeros(4, 3).to(kind), ArrayFormat((4, 3)), 12 * bits)
          for kind, bits in (
              (torch.float32, 32), (torch.float64, 32), (torch.float16, 16), (torch.int64, 32), (torch.int16, 16),
              (torch.uint8, 8), (torch.bool, 1),
          )),
        # Not declared, but sent.
        (torch.zeros(4, 3), None, 384),
        (torch.zeros(4, 3, dtype=torch.uint8), None, 96),
        ("text", None, 0),
        ("text", ArrayFormat((4, 3)), 0),
        # Grids of few bits come with the least and the largest value, grids of 32 bits do not.
        (torch.zeros(4, 3), ArrayFormat((4, 3), bits=5), 12 * 5 + 64),
        (torch.zeros(4, 3), ArrayFormat((4, 3), bits=1), 12 + 64),
        (torch.zeros(4, 3), ArrayFormat((4, 3), bits=32), 384),
        # Rows of two of four classes, and one bit per class that says which.
        (torch.zeros(4, 3), ArrayFormat((4, 3), weight="held", held_rows=True), 6 * 32 + 4),
        (torch.zeros(4, 3), ArrayFormat((4, 3), bits=5, weight="held", held_rows=True), 6 * 5 + 64 + 4),
        (torch.zeros(4, 3, 2), ArrayFormat((4, 3, 2), weight="held", held_rows=True), 12 * 32 + 4),
        (torch.zeros(4), ArrayFormat((4,), weight="held", held_rows=True), 2 * 32 + 4),
        (torch.zeros(0, 3), ArrayFormat((0, 3), weight="held", held_rows=True), 0),
        (torch.tensor(1.0), ArrayFormat((), weight="held", held_rows=True), 32),
        (torch.zeros(4, 3), ArrayFormat((4, 3), weight="elsewhere", held_rows=True), 384),
        # Counts are sent once and never change, unless they have noise.
        (torch.zeros(4), ArrayFormat((4,), "float64", "counts"), 0),
        (torch.zeros(()), ArrayFormat((), "float64", "samples"), 0),
        (torch.zeros(4, dtype=torch.float64), ArrayFormat((4,), "float64", "counts", noise=0.5), 128),
        (torch.zeros(4), ArrayFormat((4,), noise=0.5), 128),
    ],
)  # fmt: skip
def test_bits_of_an_array(array, form, bits):
    formats = {"held": ArrayFormat((4,), "int64", "counts"), **({} if form is None else {"x": form})}
    assert sent_bits(Upload(0, {"x": array, "held": HELD}), formats) == bits
    if form is not None and array != "text" and form.weight != "elsewhere":  # what is declared is what is counted
        assert wire_size({"x": replace(form, dtype=ArrayFormat.like(array).dtype)}, held_classes=2) == bits


def test_all_rows_are_charged_where_it_is_not_known_how_many_are_held():
    form = ArrayFormat((10, 6), weight="counts", held_rows=True)
    assert [wire_size({"x": form}, held) for held in (3, 0, None)] == [3 * 6 * 32 + 10, 10, 10 * 6 * 32 + 10]
    assert wire_size({"x": replace(form, bits=4)}, 3) == 3 * 6 * 4 + 64 + 10


def test_bits_of_a_single_class():
    formats = {"x": ArrayFormat((1, 3), weight="held", held_rows=True)}
    for held, values in ((1, 3), (0, 0)):
        upload = Upload(0, {"x": torch.zeros(1, 3), "held": torch.tensor([held], dtype=torch.bool)})
        assert sent_bits(upload, {**formats, "held": ArrayFormat((1,), "bool", "counts")}) == 32 * values + 1


def test_bits_of_all_arrays_add_up():
    formats = {name: ArrayFormat((4, 3)) for name in "ab"}
    for names in itertools.chain.from_iterable(itertools.combinations("abc", n) for n in range(4)):
        assert sent_bits(Upload(0, {name: torch.zeros(4, 3) for name in names}), formats) == 384 * len(names)
