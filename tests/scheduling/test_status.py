"""What became of a round, as data and as a sentence."""

import json

import pytest

from kfl.scheduling import Status
from kfl.scheduling.status import describe


def test_a_status_is_kept_as_plain_values_without_what_is_empty() -> None:
    assert Status().to_dict() == {"code": "ok"} and Status().ok and not Status("too_few").ok
    status = Status("left_out", {"unavailable": (0, 2)}, {"chosen": 7})
    assert status.to_dict() == {"code": "left_out", "devices": {"unavailable": [0, 2]}, "facts": {"chosen": 7}}
    assert Status("nobody_worth_able", {"empty": (1,)}).to_dict() == {
        "code": "nobody_worth_able",
        "devices": {"empty": [1]},
    }
    for one in (Status(), status, Status.note("So be it.")):
        assert Status.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize(("many", "stored"), [(100, {}), (101, {"count_unavailable": 101})])
def test_of_very_many_devices_the_first_hundred_and_the_number_are_kept(many: int, stored: dict[str, int]) -> None:
    status = Status("left_out", {"unavailable": tuple(range(many)), "empty": (200,)}, {"chosen": 300})
    kept = status.to_dict()
    assert kept["devices"] == {"unavailable": list(range(100)), "empty": [200]}
    assert kept["facts"] == {"chosen": 300, **stored}
    sentence = f"Left out {many + 1} of 300 chosen devices: {many} devices (0, 1, 2, 3, 4, …) not available; "
    assert str(status) == str(Status.from_dict(kept)) == sentence + "device 200 without charge."


def test_the_sentence_of_an_earlier_version_is_a_note() -> None:
    assert Status.from_dict("ok") == Status()
    assert Status.from_dict("None came.") == Status.note("None came.") == Status("note", {}, {"text": "None came."})
    assert str(Status.note("None came.")) == "None came." and str(Status("note")) == ""
    assert Status.from_dict({"code": 7, "devices": {"empty": ["3"]}}) == Status("7", {"empty": (3,)})


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (Status(), "ok"),
        (Status("too_few", facts={"able": 3, "wanted": 10}), "Only 3 devices can take part, of 10 asked for."),
        (Status("too_few"), "too_few"),  # a damaged file: the code says enough
        (Status("past_deadline", {"past_deadline": (4,)}, {"upload_time_s": "soon"}), "past_deadline"),
        (Status("left_out", {"empty": (1,)}, {"chosen": 2, "count_empty": "many"}), "left_out"),
        (Status("of_tomorrow"), "of_tomorrow"),
        (
            Status("of_tomorrow", {"empty": (1, 2), "asleep": (3,)}),
            "of_tomorrow: devices 1, 2 without charge; device 3 asleep.",
        ),
        (
            Status("past_deadline", {"past_deadline": (4, 5)}, {"upload_time_s": -0.25}),
            "Device 4 computes past the deadline: the time left for its upload is -0.25 s.",
        ),
        (
            Status("past_deadline", {"empty": (), "past_deadline": (4,)}, {"upload_time_s": 0.0}),
            "Device 4 computes past the deadline: the time left for its upload is 0 s.",
        ),
        (
            Status("past_deadline", facts={"upload_time_s": 0.0}),
            "Device 0 computes past the deadline: the time left for its upload is 0 s.",
        ),
        (
            Status("too_few_blocks", {"crowded": (1, 5)}, {"blocks": 4}),
            "4 resource blocks cannot carry 2 of the chosen devices.",
        ),
        (
            Status("left_out", {"empty": (1, 2, 3, 4, 5)}, {"chosen": 6}),
            "Left out 5 of 6 chosen devices: devices 1, 2, 3, 4, 5 without charge.",
        ),
        (
            Status("left_out", {"empty": (1, 2, 3, 4, 5, 6)}, {"chosen": 6}),
            "Left out 6 of 6 chosen devices: 6 devices (1, 2, 3, 4, 5, …) without charge.",
        ),
    ],
)
def test_sentences(status: Status, sentence: str) -> None:
    assert describe(status) == str(status) == sentence


def test_devices_may_have_names() -> None:
    status = Status("past_deadline", {"past_deadline": (1,)}, {"upload_time_s": 0.0})
    assert describe(status, ["hall", "roof"]).startswith("Device roof computes")
    assert describe(status, ["hall"]).startswith("Device 1 computes")
    assert describe(status, ["hall", "\x1b[31mred"]).startswith("Device ·red computes")
    long = describe(status, ["hall", "x" * 90])
    assert "…" in long and len(long) < 130
    assert describe(Status("odd", {"empty": (0,)}), ["hall"]) == "odd: device hall without charge."
