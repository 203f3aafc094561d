"""Versions, untrusted texts, profiles: what comes from the other side is checked and made harmless."""

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.text import scrub
from kfl_fleet.messages.profile import Profile
from kfl_fleet.messages.protocol import PROTOCOL_VERSION, RefusedError, check_version

PROFILE = Profile(
    device=1,
    classes=3,
    features=8,
    parameters=500,
    body_parameters=400,
    flops=500,
    body_flops=400,
    input_shape=(2, 2),
    samples=30,
    samples_per_class=(10, 0, 20),
    test_samples=6,
    correct=5,
    cpu_hz=1e9,
    budget_j=float("inf"),
)

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=4), st.binary()
)


@given(st.text(max_size=600))
@settings(max_examples=200)
def test_a_scrubbed_text_is_one_short_line_without_controls_or_paths(text):
    line = scrub(text)
    assert len(line) <= 200
    assert not any(unicodedata.category(c)[0] == "C" for c in line)
    assert "/" not in line
    assert "\\" not in line
    assert "\n" not in line


def test_scrubbing_keeps_the_sentence_and_drops_what_a_terminal_would_obey():
    raw = "ValueError:\x1b[2J\x1b[31m no file\r\n/home/me/.ssh/id_rsa or C:\\Users\\me\\x.py \u202egnol " + "x" * 400
    line = scrub(raw)
    assert line.startswith("ValueError: no file … or …")
    assert "id_rsa" not in line
    assert "Users" not in line
    assert "\x1b" not in line
    assert "[31m" not in line
    assert "\u202e" not in line
    assert line.endswith("…")


@given(anything)
@settings(max_examples=100)
def test_every_version_but_ours_is_refused_in_a_sentence(version):
    if type(version) is int and version == PROTOCOL_VERSION:
        check_version({"protocol": version})
        return
    with pytest.raises(RefusedError, match="this side speaks version 2"):
        check_version({"protocol": version})


def test_a_profile_survives_its_own_message_and_infinity_is_a_budget():
    assert Profile.read(PROFILE.values()) == PROFILE
    assert Profile.read(PROFILE.values()).digest() == PROFILE.digest()
    assert Profile.from_json(json.loads(json.dumps(PROFILE.to_json(), allow_nan=False))) == PROFILE


@given(st.sampled_from(sorted(PROFILE.values())), anything)
@settings(max_examples=300)
def test_a_profile_with_any_field_replaced_is_read_or_refused_but_never_breaks(name, value):
    values = {**PROFILE.values(), name: value}
    try:
        found = Profile.read(values)
    except RefusedError as problem:
        assert "\n" not in str(problem)
        return
    assert found.samples >= 1
    assert 0 <= found.correct <= found.test_samples
    assert not found.samples_per_class or sum(found.samples_per_class) == found.samples
    assert found.body_flops <= found.flops


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples_per_class": [10, 0, 21]}, "do not add up"),
        ({"samples_per_class": [30]}, "do not add up"),
        ({"samples": 0}, "samples is 0"),
        ({"correct": 7}, "correct is 7"),
        ({"cpu_hz": float("nan")}, "cpu_hz is nan"),
        ({"max_power_w": -1.0}, "max_power_w is -1"),
        ({"budget_j": 0.0}, "budget_j is 0"),
        ({"classes": True}, "classes is not an integer"),
        ({"input_shape": []}, "input_shape is not a shape"),
        ({"features": 2.0}, "features is not an integer"),
    ],
)
def test_impossible_profiles_are_refused_with_the_field(changes, said):
    with pytest.raises(RefusedError, match=said):
        Profile.read({**PROFILE.values(), **changes})


def test_the_digest_changes_with_the_data_but_not_with_learning():
    learned = Profile.read({**PROFILE.values(), "correct": 6, "gain": 1e-9})
    grown = Profile.read({**PROFILE.values(), "samples": 31, "samples_per_class": [11, 0, 20]})
    assert learned.digest() == PROFILE.digest()
    assert grown.digest() != PROFILE.digest()


def test_a_device_that_does_not_say_what_it_draws_has_the_name_it_had_before_it_could():
    """Else a device of the version before would seem to have changed in every round."""
    plain = Profile(0, 2, 64, 1000, 900, 2000, 1900, (8,), 30, (10, 20), 5, 3)
    assert plain.digest() == "5cc05539c5e051ae"
    drawing = replace(plain, circuit_power_w=0.2, min_cpu_hz=1e8, amplifier_efficiency=0.3)
    assert drawing.digest() != plain.digest() and Profile.read(drawing.values()) == drawing
    with pytest.raises(RefusedError):
        Profile.read({**plain.values(), "amplifier_efficiency": 1.5})
