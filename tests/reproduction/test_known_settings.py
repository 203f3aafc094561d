"""The settings of others that `reproduction.known_settings` repeats: their networks and the committed results."""

from __future__ import annotations

import pytest

from reproduction.known_settings import PAGE, RESULTS, fill, read, settings
from studies import known_networks


@pytest.mark.parametrize(("name", "width", "parameters"), [("two_nn", 200, 199_210), ("padded_cnn", 512, 1_663_370)])
def test_networks_have_the_published_number_of_parameters(name, width, parameters):
    model = getattr(known_networks, name)((1, 28, 28), 10, width)
    assert sum(value.numel() for value in model.parameters()) == parameters


def test_every_setting_is_a_run_of_its_own_and_can_be_measured():
    names = [setting.name for setting in settings()]
    assert len(set(names)) == len(names)
    for setting in settings():
        experiment = setting.experiment(setting.seeds[0])
        experiment.validate()
        assert max(setting.theirs) == experiment.rounds
        if setting.target is None:
            assert all(rounds % experiment.evaluate_every == 0 for rounds in setting.theirs)


def test_committed_results_are_of_the_settings_as_they_are():
    known = {setting.name: setting for setting in settings()}
    for entry in read(RESULTS):
        setting = known[entry["setting"]]
        assert entry["digest"] == setting.experiment(entry["seed"]).digest()
        assert len(entry["accuracy"]) == max(setting.theirs)


def test_the_page_says_what_the_results_say():
    page = PAGE.read_text()
    assert all(f"<!-- known: {setting.algorithm} -->" in page for setting in settings())
    assert fill(page, read(RESULTS)) == page
