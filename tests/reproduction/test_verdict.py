"""The rule for verdicts, against its own words."""

from hypothesis import assume, given
from hypothesis import strategies as st

from kfl.comparison.statistics import Difference
from reproduction.verdict import better, chance, equal, together, weakest

numbers = st.floats(-20, 20)
widths = st.floats(0.01, 10)
VERDICTS = ["holds", "holds in part", "does not hold", "cannot be judged", "identical runs"]


def around(mean: float, half: float, count: int = 5) -> Difference:
    return Difference(mean, mean - half, mean + half, count)


levels = st.floats(1e-4, 0.05)


@given(numbers, widths, st.floats(0, 10), st.floats(0.1, 2), levels)
def test_better_says_what_its_words_say(mean: float, half: float, by: float, margin: float, level: float) -> None:
    plain = around(mean, half)
    found = plain.at(1 - level)
    assume(min(abs(found.low - margin), abs(found.high - margin), abs(found.low), abs(mean - margin)) > 1e-9)
    said = better(plain, margin, by, level)
    assert (said == "does not hold") == (found.high < margin)
    assert (said == "holds") == (found.low > margin and (mean >= by / 2 or plain.high >= by))
    if said == "holds in part":
        assert found.low > 0 and mean > margin
    if said == "cannot be judged":
        assert found.high >= margin and (found.low <= 0 or mean <= margin)


@given(numbers, widths, st.floats(0.1, 2), st.floats(0, 5), levels)
def test_a_larger_advantage_is_never_judged_worse(mean, half, margin, more, level) -> None:
    order = ["does not hold", "cannot be judged", "holds in part", "holds"]
    one, other = (better(around(value, half), margin, level=level) for value in (mean, mean + more))
    assert order.index(one) <= order.index(other)


@given(numbers, widths, st.floats(0, 10), st.floats(0.1, 2), levels)
def test_a_correction_takes_verdicts_back_and_improves_none(mean, half, by, margin, level) -> None:
    plain, corrected = better(around(mean, half), margin, by), better(around(mean, half), margin, by, level)
    assert (
        corrected
        in {
            "holds": {"holds", "holds in part", "cannot be judged"},
            "holds in part": {"holds in part", "cannot be judged"},
            "does not hold": {"does not hold", "cannot be judged"},
            "cannot be judged": {"cannot be judged"},
        }[plain]
    )
    assert equal(around(mean, half), margin, level) in (equal(around(mean, half), margin), "cannot be judged")


@given(numbers, widths, st.floats(0.1, 2), levels)
def test_the_margin_counts_as_equal_whatever_the_sign(mean, half, margin, level) -> None:
    """Within the margin on either side, neither is better than the other."""
    found, turned = around(mean, half), around(-mean, half)
    if equal(found, margin, level) == "holds":
        assert better(found, margin, level=level) == better(turned, margin, level=level) == "does not hold"
    if "holds" in (better(found, margin, level=level), better(turned, margin, level=level)):
        assert equal(found, margin, level) == "does not hold"


@given(numbers, widths, st.floats(0.1, 2), levels, st.sampled_from(["above", "equal"]))
def test_a_question_is_answered_from_its_p_value_on(mean, half, margin, level, asks) -> None:
    """Whatever has a side of its margin at the level granted has a p-value below it, and the other way round."""
    found = around(mean, half)
    chances = chance(found, margin, asks)
    assume(abs(chances - level) > 1e-6)
    bounds = found.at(1 - level)
    edges = [margin] if asks == "above" else [margin, -margin]
    assert (chances < level) == all(not bounds.low <= edge <= bounds.high for edge in edges)


@given(numbers, widths, st.floats(0.1, 2))
def test_equal_is_symmetric(mean: float, half: float, margin: float) -> None:
    assert equal(around(mean, half), margin) == equal(around(-mean, half), margin)


def test_fewer_than_five_seeds_judge_nothing() -> None:
    assert better(around(9, 0.1, count=4), 0.2) == equal(around(0, 0.01, count=4), 1.0) == "cannot be judged"
    assert better(None, 0.2) == better(Difference(3, None, None, 1), 0.2) == "cannot be judged"


@given(st.lists(st.sampled_from(VERDICTS), min_size=1))
def test_several_pairs(verdicts: list) -> None:
    said, tested = together(verdicts), set(verdicts) - {"identical runs"}
    assert (said == "holds") == (tested == {"holds"})
    assert (said == "cannot be judged") == (tested == {"cannot be judged"})
    assert (said == "identical runs") == (not tested), "identical runs have no part in a verdict"
    if said == "does not hold":
        assert not {"holds", "holds in part"} & tested


@given(st.lists(st.sampled_from(VERDICTS), min_size=1))
def test_the_best_rival_decides(verdicts: list) -> None:
    said = weakest(verdicts)
    assert (said == "holds") == (set(verdicts) <= {"holds", "identical runs"} and "holds" in verdicts)
    assert (said == "does not hold") == ("does not hold" in verdicts)
