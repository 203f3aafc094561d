"""The rule for verdicts, against its own words."""

from hypothesis import given
from hypothesis import strategies as st

from kfl.paper.verdict import better, equal, together
from kfl.simulation.statistics import Difference

numbers = st.floats(-20, 20)
widths = st.floats(0.01, 10)
VERDICTS = ["holds", "holds in part", "does not hold", "cannot be judged"]


def around(mean: float, half: float, count: int = 5) -> Difference:
    return Difference(mean, mean - half, mean + half, count)


@given(numbers, widths, st.floats(0, 10), st.floats(0.1, 2))
def test_better_says_what_its_words_say(mean: float, half: float, by: float, margin: float) -> None:
    found = around(mean, half)
    said = better(found, margin, by)
    assert (said in ("holds", "holds in part")) == (found.low > 0)
    if said == "holds":
        assert mean >= by / 2 or found.high >= by
    if said == "does not hold":
        assert found.high < margin
    if said == "cannot be judged":
        assert found.low <= 0 and found.high >= margin


@given(numbers, widths, st.floats(0.1, 2), st.floats(0, 5))
def test_a_larger_advantage_is_never_judged_worse(mean: float, half: float, margin: float, more: float) -> None:
    order = ["does not hold", "cannot be judged", "holds"]
    one, other = better(around(mean, half), margin), better(around(mean + more, half), margin)
    assert order.index(one) <= order.index(other)


@given(numbers, widths, st.floats(0.1, 2))
def test_equal_is_symmetric(mean: float, half: float, margin: float) -> None:
    assert equal(around(mean, half), margin) == equal(around(-mean, half), margin)


def test_fewer_than_five_seeds_judge_nothing() -> None:
    assert better(around(9, 0.1, count=4), 0.2) == equal(around(0, 0.01, count=4), 1.0) == "cannot be judged"
    assert better(None, 0.2) == better(Difference(3, None, None, 1), 0.2) == "cannot be judged"


@given(st.lists(st.sampled_from(VERDICTS), min_size=1))
def test_several_pairs(verdicts: list) -> None:
    said = together(verdicts)
    assert (said == "holds") == (set(verdicts) == {"holds"})
    assert (said == "cannot be judged") == (set(verdicts) == {"cannot be judged"})
    if said == "does not hold":
        assert not {"holds", "holds in part"} & set(verdicts)
