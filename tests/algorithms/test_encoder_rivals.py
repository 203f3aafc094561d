"""Rivals of common knowledge in `studies.common_encoder`: sums, what they estimate, and what they charge."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kfl.algorithms.kernel_expert import weigh_experts
from studies.common_encoder.rivals import RIVALS, Moments, added
from studies.common_encoder.tables import PAGE, page

CLASSES, D = 4, 6
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "common-encoder"


def samples(seed=0, n=4000):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    mixed = rng.normal(size=(n, D)) @ rng.normal(size=(D, D))
    return torch.from_numpy(mixed + 2 * rng.normal(size=(CLASSES, D))[y]), torch.from_numpy(y)


def known(x, y, devices):
    owner = torch.from_numpy(np.random.default_rng(1).integers(0, devices, len(y)))
    return added([Moments.of(x[owner == k], y[owner == k], CLASSES) for k in range(devices)])


@pytest.mark.parametrize("name", [name for name in RIVALS if name != "FedCOF"])
def test_a_rivals_common_classifier_does_not_depend_on_who_holds_what(name):
    x, y = samples()
    head = RIVALS[name].head
    one, other = head(known(x, y, 2)), head(known(x, y, 40))
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-6, atol=1e-9)
    assert (one.scores(x).argmax(1) == y).double().mean() > 0.6


def test_fed_cof_from_means_alone_comes_near_the_classifier_from_second_moments():
    x, y = samples()
    cof, fed3r = (RIVALS[name].head(known(x, y, 400)).scores(x).argmax(1) for name in ("FedCOF", "Fed3R"))
    assert (cof == fed3r).double().mean() > 0.85


@pytest.mark.parametrize("name", [name for name, rival in RIVALS.items() if rival.personal])
def test_a_personal_rival_learns_what_is_special_about_its_device(name):
    x, y = samples()
    theirs = (y + 1) % CLASSES  # a device whose classes have other names
    rival = RIVALS[name]
    common = known(x, y, 20)
    head = rival.head(common)
    personal = rival.personal(common, head, x[:600], theirs[:600])
    right = [(one.scores(x[600:]).argmax(1) == theirs[600:]).double().mean() for one in (head, personal)]
    assert right[0] < 0.3 and right[1] > 0.6


def test_rivals_are_charged_for_means_counts_and_second_moments():
    assert RIVALS["FedNCM"].bits(256, 2) == 2 * 256 * 32 + 2 * 16
    assert RIVALS["Fed3R"].bits(256, 2) == (2 * 256 + 256 * 257 // 2) * 32 + 2 * 16
    fits = RIVALS["Fed3R"].most_numbers(20_480, 256, 10)
    assert RIVALS["Fed3R"].bits(fits, 10) <= 20_480 < RIVALS["Fed3R"].bits(fits + 1, 10)


def test_a_device_with_much_data_that_the_common_classifier_misleads_keeps_its_own_alone():
    place = torch.arange(400) % 2
    right = torch.nn.functional.one_hot(place, 2).bool()
    sure, misled = torch.where(right, -0.3, -1.35).double(), torch.where(right, -4.6, -0.01).double()
    assert weigh_experts(misled, sure, place)[0] == 0
    assert weigh_experts(sure, misled, place) == (1.0, 0.0)
    assert weigh_experts(sure[:4], sure[:4], place[:4])[0] == 1.0


def test_the_published_page_is_that_of_the_committed_results():
    assert page(RESULTS) == (RESULTS / PAGE).read_text(encoding="utf-8")
