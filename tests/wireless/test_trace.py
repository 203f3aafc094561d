"""Traces against a table in memory, and every mistake in a file against its sentence."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kfl.core.errors import TraceError
from kfl.wireless.trace import ALL_DEVICES, MAX_BYTES, Quantity, Trace, open_trace, true_or_false

WATTS = Quantity("watts", "a number of watts, 0 or more", lowest=0.0)
GAIN_DB = Quantity("gain_db", "a gain in dB between -300 and 0", -300.0, 0.0)
AVAILABLE = Quantity("available", "1 or 0, or true or false", parse=true_or_false)

DEVICES = 3


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def opened(folder: Path, text: str | bytes, quantities=(WATTS,), round_s: float = 1.0, **options) -> Trace:
    return open_trace(write(folder, text), quantities, DEVICES, round_s, **options)


rows = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda n: n / 4),
        st.integers(ALL_DEVICES, DEVICES - 1),
        st.floats(0, 10).map(lambda x: round(x, 3)),
    ),
    max_size=25,
).map(lambda found: [(0.0, ALL_DEVICES, 1.0), *sorted(found, key=lambda row: row[0])])


def as_csv(found) -> str:
    return "time_s,device,watts\n" + "".join(f"{t},{'*' if d == ALL_DEVICES else d},{v}\n" for t, d, v in found)


def value_at(found, device: int, time_s: float) -> float:
    """The last row of a device that is not later, but for a rounding error."""
    return [v for t, d, v in found if d in (ALL_DEVICES, device) and t <= time_s * (1 + 1e-12)][-1]


def integral(found, device: int, start_s: float, end_s: float) -> float:
    """Sum over the pieces between all times at which anything changes."""
    cuts = sorted({start_s, end_s, *(t for t, _, _ in found if start_s < t < end_s)})
    return math.fsum(value_at(found, device, a) * (b - a) for a, b in pairwise(cuts))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(found=[(0.0, ALL_DEVICES, 1.0), (10.0, 0, 2.0)], times=[9.999999999999998], span=1.0)
@given(found=rows, times=st.lists(st.floats(0, 12), min_size=1, max_size=6), span=st.floats(0, 5))
def test_values_and_integrals_are_those_of_the_whole_table(tmp_path, found, times, span) -> None:
    """In any order of asking: going back is the same as going forward."""
    trace = Trace(write(tmp_path, as_csv(found)), [WATTS], DEVICES, 1.0)
    for time_s in times:
        assert trace.at(time_s).tolist() == [value_at(found, d, time_s) for d in range(DEVICES)]
        expected = [integral(found, d, time_s, time_s + span) for d in range(DEVICES)]
        assert trace.integral(time_s, time_s + span) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        fresh = Trace(trace.path, [WATTS], DEVICES, 1.0)
        assert (fresh.integral(time_s, time_s + span) == trace.integral(time_s, time_s + span)).all(), "bit for bit"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=rows, start=st.floats(0, 60), span=st.floats(0, 40))
def test_a_trace_that_repeats(tmp_path, found, start, span) -> None:
    period = 12.5
    trace = Trace(write(tmp_path, as_csv(found)), [WATTS], DEVICES, 1.0, repeat_s=period)
    many = [(t + n * period, d, v) for n in range(10) for t, d, v in found]
    assert trace.at(start).tolist() == [value_at(many, d, start) for d in range(DEVICES)]
    expected = [integral(many, d, start, start + span) for d in range(DEVICES)]
    assert trace.integral(start, start + span) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_rounds_are_times_and_a_sample_counts_in_the_round_that_starts_with_it(tmp_path) -> None:
    trace = opened(tmp_path, "round,device,watts\n0,*,1\n100,*,2\n", round_s=0.29)
    assert trace.at(99 * 0.29).tolist() == [1, 1, 1] and trace.at(100 * 0.29).tolist() == [2, 2, 2]
    seconds = opened(tmp_path, "time_s,device,watts\n0,*,1\n29,*,2\n", round_s=0.29)
    assert 100 * 0.29 < 29 and seconds.at(100 * 0.29).tolist() == [2, 2, 2]


def test_what_a_file_may_look_like(tmp_path) -> None:
    text = '\ufeff"watts","note",device,time_s\r\n# a note\r\n\r\n 1.5 ,x, * , 0 \r\n2,x,"1",3\r\n'
    assert opened(tmp_path, text).at(3.0).tolist() == [1.5, 2.0, 1.5]
    words = opened(tmp_path, "time_s,device,available\n0,*,TRUE\n1,0,0\n1,1,false\n", [AVAILABLE])
    assert words.at(1.0).tolist() == [0.0, 0.0, 1.0]


def test_a_file_that_changed_is_another_trace_and_an_unchanged_one_is_not(tmp_path) -> None:
    one = opened(tmp_path, "time_s,device,watts\n0,*,1\n")
    assert open_trace(one.path, (WATTS,), DEVICES, 1.0) is one
    other = opened(tmp_path, "time_s,device,watts\n0,*,12\n")
    assert other.at(0.0).tolist() == [12, 12, 12] and other.fingerprint != one.fingerprint


START = "time_s,device,watts\n0,*,1\n"


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("", {}, "is empty: its first line must name its columns."),
        ("\n# nothing\n", {}, "is empty: its first line must name its columns."),
        ("time_s,device,watts\n", {}, "has no value of device 0 at time 0: every device needs a row there."),
        ("device,watts\n0,1\n", {}, "has no column time_s or round; its columns are device, watts."),
        ("time_s,watts\n0,1\n", {}, "has no column device; its columns are time_s, watts."),
        (
            "time_s,device,power\n0,*,1\n",
            {},
            "has no column watts; its columns are time_s, device, power (is power meant to be watts?).",
        ),
        ("time_s,round,device,watts\n", {}, "has the columns time_s and round, but must have one of them."),
        (START + "5,0,1\n4,1,1\n", {}, "Line 4 of the trace {} cannot be used: its time is 4 s, before 5 s: rows must"),
        (START + "5,3,1\n", {}, "Line 3 of the trace {} cannot be used: device is 3, but the fleet has the devices 0"),
        (START + "5,-1,1\n", {}, "device is -1, but the fleet has the devices 0 to 2."),
        (START + "5,phone,1\n", {}, "device is 'phone', but must be the number of a device, or * for all."),
        (START + "5,0,\n", {}, "Line 3 of the trace {} cannot be used: watts is '', but must be a number of watts"),
        (START + "5,0,nan\n", {}, "watts is 'nan', but must be a number of watts, 0 or more."),
        (START + "5,0,inf\n", {}, "watts is 'inf', but must be a number of watts, 0 or more."),
        (START + "5,0,-2\n", {}, "watts is '-2', but must be a number of watts, 0 or more."),
        (START + "5,0\n", {}, "it has 2 columns, but 3 are needed."),
        (START + "soon,0,1\n", {}, "time_s is 'soon', but must be a number of seconds, 0 or more."),
        (START + "-3,0,1\n", {}, "time_s is '-3', but must be a number of seconds, 0 or more."),
        ("round,device,watts\n0,*,1\n1.5,*,1\n", {}, "round is '1.5', but must be an integer of rounds, 0 or"),
        ("time_s,device,watts\n0,0,1\n0,1,1\n5,2,1\n", {}, "has no value of device 2 at time 0"),
        ("time_s,device,watts\n0,0,1\n0,1,1\n5,*,1\n", {}, "has no value of device 2 at time 0"),
        (START + "50,1,1\n", {"max_gap_s": 20.0}, "has no row of device 1 between 0 s and 50 s: a longer gap than"),
        (START + "50,1,1\n", {"repeat_s": 20.0}, "its time is 50 s, but the trace repeats after 20 s."),
        (START, {"repeat_s": 50.0, "max_gap_s": 20.0}, "has no row of device 0 between 0 s and 50 s"),
        (b"\xff\xfe\x00", {}, "is not text in UTF-8: it must be a CSV file."),
        (bytes(range(256)), {}, "is not text in UTF-8: it must be a CSV file."),
        (START.encode() + b"5,0,\xff\n", {}, "but must be a number of watts, 0 or more."),
    ],
)
def test_every_mistake_has_one_sentence(tmp_path, text, options, sentence) -> None:
    with pytest.raises(TraceError) as error:
        opened(tmp_path, text, **options)
    assert sentence.format(tmp_path / "trace.csv") in str(error.value) and str(tmp_path) in str(error.value)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


ALMOST = st.lists(
    st.sampled_from(
        [b"time_s,device,watts\n", b"round,device,watts\n", b"0,*,1\n", b"5,0,2\n", b"9" * 400, b",", b"\n", b"#"]
    )
    | st.binary(max_size=12),
    max_size=8,
).map(b"".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ALMOST)
def test_whatever_a_file_holds_is_a_trace_or_one_sentence(tmp_path, content) -> None:
    try:
        trace = Trace(write(tmp_path, content), [WATTS], DEVICES, 1.0)
    except TraceError as problem:
        assert "\n" not in str(problem) and str(problem).endswith(".")
    else:
        assert (trace.at(3.0) >= 0).all()


def test_units_that_cannot_be_right(tmp_path) -> None:
    with pytest.raises(TraceError, match=r"Line 2 .* gain_db is '30', but must be a gain in dB between -300 and 0"):
        opened(tmp_path, "time_s,device,gain_db\n0,*,30\n", [GAIN_DB])
    with pytest.raises(TraceError, match="has the columns gain_db and watts, but must have one of them"):
        opened(tmp_path, "time_s,device,gain_db,watts\n0,*,-30,1\n", [GAIN_DB, WATTS])


def test_the_end_of_a_trace(tmp_path) -> None:
    assert opened(tmp_path, START).at(1e6).tolist() == [1, 1, 1], "the last value holds"
    short = opened(tmp_path, START + "10,*,2\n15,1,2\n", max_gap_s=10.0)
    assert short.at(20.0).tolist() == [2, 2, 2]
    for ask in (lambda: short.at(20.5), lambda: short.integral(19.0, 21.0)):
        with pytest.raises(TraceError, match="has no row of device 0 after 10 s, but is needed at 2"):
            ask()


def test_a_file_that_is_not_there(tmp_path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            open_trace(path, [WATTS], DEVICES, 1.0)


def test_open_trace_refuses_file_larger_than_memory_allows(tmp_path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # sparse: it takes no space
    with pytest.raises(TraceError, match=r"huge.csv is larger than 2 GB, but a trace is held in memory: thin it out"):
        open_trace(path, [WATTS], DEVICES, 1.0)


def test_numbers_come_back_exactly(tmp_path) -> None:
    values = np.random.default_rng(0).random(DEVICES)
    text = "time_s,device,watts\n" + "".join(f"0,{d},{float(v)!r}\n" for d, v in enumerate(values))
    assert (opened(tmp_path, text).at(0.0) == values).all()


def test_partial_trace_has_nan_before_a_device_s_first_row_whatever_the_order_of_rows(tmp_path) -> None:
    trace = opened(tmp_path, "round,device,watts\n2,0,3\n0,0,1\n1,2,5\n", round_s=0.5, partial=True)
    np.testing.assert_array_equal(trace.at(0.0), [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(trace.at(0.5), [1.0, np.nan, 5.0])
    np.testing.assert_array_equal(trace.at(9.0), [3.0, np.nan, 5.0])


def test_trace_of_json_lines_is_told_to_be_csv(tmp_path) -> None:
    with pytest.raises(TraceError, match="is JSON, but must be CSV"):
        opened(tmp_path, '{"round": 0, "device": 0, "watts": 1}\n', partial=True)


@pytest.mark.parametrize("text", ["", "-1,0,1\n", "0,0,x\n", "0,9,1\n"])
def test_partial_trace_is_checked_as_any_other(tmp_path, text) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv"):
        opened(tmp_path, "time_s,device,watts\n" + text, partial=True)
