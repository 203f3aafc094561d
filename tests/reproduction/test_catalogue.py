"""The figures as lists of experiments: what the paper says they are, each run once, nothing invalid."""

from collections import Counter

import pytest

from kfl.algorithms import ALGORITHMS
from kfl.core.errors import ConfigError
from kfl.engine.base import DeviceProfile
from kfl.models import fleet_from_name
from kfl.wireless.costs import compute_time
from reproduction.claims import claims
from reproduction.figures import FIGURES, GROUPS, chosen
from reproduction.judging import judge
from reproduction.own_figures import CONDITIONS
from reproduction.results import Store
from reproduction.setting import EQUAL_WIDTH, EQUAL_WORK, FULL, QUICK, SAMPLES, as_set, run_key, runs, tuned
from reproduction.upload_claims import NETWORKS


def every_figure():
    return [build() for build in FIGURES.values()]


def test_there_is_every_figure_of_the_paper_and_of_its_report() -> None:
    letters = {2: "abc", 3: "abc", 4: "abcd"}
    printed = {f"fig{number}{letter}" for number, some in letters.items() for letter in some}
    ours = {"sharing", "prototypes", "energy", "energy-m3"}
    assert printed | {f"{name}-m3" for name in printed} | ours == set(FIGURES)
    assert set(GROUPS["all"]) == set(FIGURES) - {"energy-m3"}


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_a_name_stands_for_one_experiment_in_every_figure(scale) -> None:
    found: dict[str, str] = {}
    for figure in every_figure():
        for name, experiment in runs(figure, scale):
            experiment.validate()
            assert found.setdefault(name, experiment.digest()) == experiment.digest()
    assert not scale.quick or all(name.endswith("quick") for name in found)


def test_full_size_is_the_papers() -> None:
    for figure in every_figure():
        for _, experiment in runs(figure, FULL):
            assert (experiment.devices, experiment.rounds) == (100, 200)
            assert experiment.algorithm.local_steps == 5 and experiment.algorithm.momentum == 0.9
            assert experiment.dataset in ("mnist", "cifar10")
    assert FULL.seeds == (0, 1, 2, 3, 4)
    assert QUICK.rounds >= 40


def test_learning_comparisons_have_no_radio_and_schedulers_have_the_papers_cell() -> None:
    for name, build in FIGURES.items():
        cells = {line.experiment.cell_config is not None for line in build().lines(FULL)}
        assert cells == ({True} if name.startswith(("fig4", "energy")) else {False})


def test_patterns_have_the_same_total() -> None:
    for name in ("fig2c", "fig3c-m3"):
        totals = {
            sum(line.experiment.scheduler.size(t, 200) for t in range(200)) for line in FIGURES[name]().lines(FULL)
        }
        assert totals == {2000}


@pytest.mark.parametrize("name", ["energy", "energy-m3"])
def test_every_device_can_do_the_real_work_of_the_energy_view_in_time(name) -> None:
    """With the slowest clock, for every algorithm; a device that never could would be starved by the deadline."""
    for line in FIGURES[name]().lines(FULL):
        experiment, cell = line.experiment, line.experiment.cell_config
        assert experiment.real_work and experiment.hard_budget and cell.flops_per_cycle == 16
        kind, shape = NETWORKS[experiment.dataset]
        model = fleet_from_name(kind, experiment.widths, 1, shape, 10, seed=0).profile(0)
        work = experiment.algorithm.real_flops(DeviceProfile(model, SAMPLES[experiment.dataset]))
        assert compute_time(work, min(cell.cpu_frequencies_hz), cell.flops_per_cycle) < 0.75 * cell.deadline_s


def test_fedrep_at_equal_work_works_as_much_as_kfl() -> None:
    for dataset, (kind, shape) in NETWORKS.items():
        model = fleet_from_name(kind, (EQUAL_WIDTH[dataset],), 1, shape, 10, seed=0).profile(0)
        device = DeviceProfile(model, SAMPLES[dataset])
        kfl, fedrep = (as_set(name).real_flops(device) for name in ("kfl", EQUAL_WORK))
        assert fedrep == pytest.approx(kfl, rel=0.01)


def test_the_sharing_study_fits_its_limit_and_varies_what_it_should() -> None:
    assert len(dict(runs(FIGURES["sharing"](), FULL))) <= 200
    assert {2, 3, 5, 10} <= {condition.classes for condition in CONDITIONS}
    assert {condition.dataset for condition in CONDITIONS} == {"mnist", "cifar10"}
    assert len({condition.samples for condition in CONDITIONS}) > 2
    assert any(condition.new_class for condition in CONDITIONS)
    assert len({condition.count for condition in CONDITIONS}) > 1


def test_every_algorithm_was_searched_for_on_both_datasets() -> None:
    for dataset in ("mnist", "cifar10"):
        for name in ALGORITHMS:
            tuned(name, dataset).validate()
        assert tuned("local", dataset) != ALGORITHMS["local"]()


class Listening(Store):
    """A store that remembers what it was asked for."""

    def seeds(self, line, scale):
        self.asked = {*getattr(self, "asked", set()), line if isinstance(line, str) else line.key}
        return super().seeds(line, scale)


def test_claims_ask_only_for_runs_that_a_figure_makes() -> None:
    store = Listening()
    judge(claims(), store, FULL)
    made = {line.key for figure in every_figure() for line in figure.lines(FULL)}
    assert store.asked <= made


def test_the_command_of_a_claim_makes_its_runs() -> None:
    for claim in claims():
        store = Listening()
        judge([claim], store, FULL)
        words = claim.command.removeprefix("python -m reproduction ").removeprefix("figures ").split()
        made = {line.key for figure in chosen(words) for line in figure.lines(FULL)} if words != ["claims"] else set()
        assert getattr(store, "asked", set()) <= made, claim.says


def test_claims_are_told_apart() -> None:
    assert max(Counter(claim.says + claim.where for claim in claims()).values()) == 1


def test_an_unknown_figure_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"fig9.*fig2a"):
        chosen(["fig9"])


def test_names_of_runs_hold_the_seed() -> None:
    assert run_key("a", 3, FULL) == "a seed3" and run_key("a", 3, QUICK) == "a seed3 quick"
