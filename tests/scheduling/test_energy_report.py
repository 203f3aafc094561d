from dataclasses import replace

import numpy as np
import pytest

from kfl.scheduling import Decision, Observation, Status, Uplink
from kfl.scheduling.energy_report import by_part, dominant


def test_round_energy_charges_only_who_took_part() -> None:
    spent = {"compute_energy_j": np.array([1.0, 2, 3]), "upload_energy_j": np.array([0.1, 0.2, 0.3])}
    decision = replace(Decision.nobody(3, Status()), chosen=np.array([True, False, True]), **spent)
    compute, upload = decision.energy_j()
    assert compute.tolist() == [1, 0, 3] and upload.tolist() == [0.1, 0, 0.3]


@pytest.mark.parametrize(
    ("compute", "upload", "word"), [(1, 1e-8, "processor"), (1, 3, "uplink"), (1, 1, "Neither"), (0, 0, "No energy")]
)
def test_dominant(compute: float, upload: float, word: str) -> None:
    assert word in dominant(compute, upload)


def test_parts_are_told_from_the_largest_and_a_thousandth_is_told_still() -> None:
    parts = {"computing": [1.0, 8.0], "static": 0.0, "radiating": 0.01, "tail": 0.99, "circuits": 0.0}
    assert by_part(parts) == "Where the energy went: computing 90.0 %, tail 9.9 %, radiating 0.1 %."
    small = {"computing": 1.0, "tail": 1e-6, "radiating": 1e-5}
    assert by_part(small) == "Where the energy went: computing 100.0 %; less than 0.1 % each: radiating, tail."
    assert by_part({"computing": [0.0, 0.0]}) == "No energy was spent."


def test_the_printed_model_knows_computing_and_radiating_alone() -> None:
    three = np.ones(3)
    link = Uplink(1e6, 4e-21, 1e-9 * three, 1e5 * three, 0.5 * three, three)
    for uplink in (link, None):
        seen = Observation(0, 0, three, three > 0, three, three, three, False, uplink)
        spent = {"compute_energy_j": np.array([1.0, 2, 3]), "upload_energy_j": np.array([0.1, 0.2, 0.3])}
        decision = replace(Decision.nobody(3, Status()), chosen=np.array([True, False, True]), **spent)
        parts = {name: energy_j.tolist() for name, energy_j in decision.parts_j(seen.uplink).items()}
        nothing = {name: [0, 0, 0] for name in ("static", "circuits", "tail", "receiving")}
        assert parts == {"computing": [1, 0, 3], "radiating": [0.1, 0, 0.3], **nothing}


def test_two_thirds_dominate() -> None:
    assert "uplink dominates" in dominant(1.0, 2.0)
    assert "processor dominates" in dominant([1.0, 1.0], 1.0)
    assert "Neither" in dominant(1.0, 1.99)
    assert "Neither" in dominant(1.99, 1.0)
    said = dominant(np.full((2, 2), 3.0), np.ones((2, 2)))
    assert said == "The processor dominates: computation takes 75.00 % of the energy, the uplink 25.00 %."
    assert dominant(0.0, 0.0) == by_part({"computing": 0.0, "tail": [0.0]}) == "No energy was spent."


def test_a_part_below_a_thousandth_is_named_without_its_number() -> None:
    """In the order of their sizes; "each" where there is more than one."""
    parts = {"static": 0.0, "tail": 0.0009, "computing": 0.9991, "radiating": 0.0}
    assert by_part(parts) == "Where the energy went: computing 99.9 %; less than 0.1 %: tail."
    parts = {"computing": 9.996, "tail": 0.004}
    assert by_part(parts) == "Where the energy went: computing 100.0 %; less than 0.1 %: tail."
    assert Decision.nobody(2, Status()).energy_j()[1].tolist() == [0.0, 0.0]
