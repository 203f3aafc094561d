"""An option that cannot act is refused, and the table that says which is complete."""

import dataclasses
import typing

import pytest

import kfl
import kfl.runner
import kfl.simulation.world
import kfl.wireless
from kfl.algorithms import ALGORITHMS
from kfl.cli.main import main
from kfl.experiment import check_idle
from kfl.experiment.idle import COUNTED, NEEDS, words_of
from kfl.scheduling import SCHEDULERS
from kfl.wireless import PRESETS, CellConfig, Channel, Harvest, Mobility

REGISTRIES = {
    "algorithm": ALGORITHMS,
    "scheduler": SCHEDULERS,
    "radio.fading": Channel.registry(),
    "radio.harvest": Harvest.registry(),
    "radio.mobility": Mobility.registry(),
}


ALWAYS = frozenset(
    {
        *("dataset", "devices", "seed", "split", "samples_per_device", "new_class_samples", "rounds", "model"),
        *("encoder", "algorithm", "scheduler", "radio", "faults", "evaluate_every", "availability_trace"),
        "scheduler.participation",
        *("algorithm.aggregation", "algorithm.mixing", "algorithm.mixing_rate", "algorithm.mean_bits"),
        *("algorithm.covariance", "algorithm.personal", "algorithm.worth_of", "algorithm.clip_norm"),
        *("algorithm.noise_multiplier", "algorithm.distill_weight", "algorithm.head", "algorithm.distill_steps"),
        *(
            "algorithm.largest_gradient",
            "algorithm.small_features",
            "algorithm.small_width",
            "algorithm.small_loss_weight",
        ),
        *("algorithm.prototype_weight", "algorithm.head_steps", "algorithm.body_steps", "algorithm.margin_limit"),
        *("algorithm.memory", "algorithm.bits_per_value", "algorithm.charge", "algorithm.share"),
        *("algorithm.kind", "algorithm.bits_down", "algorithm.budget_bits", "algorithm.pull"),
        *("radio.bandwidth_hz", "radio.noise_dbm_per_hz", "radio.max_power_dbm", "radio.deadline_s"),
        *("radio.cpu_frequencies_hz", "radio.flops_per_cycle", "radio.power_coefficient", "radio.fading"),
        *("radio.channel_margin_db", "radio.downlink_power_dbm", "radio.resource_blocks", "radio.min_cpu_hz"),
        *("radio.static_power_w", "radio.amplifier_efficiency", "radio.circuit_power_w", "radio.min_power_dbm"),
        *("radio.connect_energy_j", "radio.battery_capacity_j"),
        *("radio.fading.k_factor_db", "radio.fading.path", "radio.fading.reference_power_dbm"),
        *("radio.fading.repeat_s", "radio.fading.max_gap_s", "radio.harvest.watts", "radio.harvest.peak_w"),
        *("radio.harvest.sunrise_h", "radio.harvest.daylight_h", "radio.harvest.start_h", "radio.harvest.worst_panel"),
        *("radio.harvest.clouds", "radio.harvest.path", "radio.harvest.repeat_s", "radio.harvest.max_gap_s"),
        *("radio.mobility.min_speed_m_per_s", "radio.mobility.max_speed_m_per_s", "radio.mobility.pause_s"),
        *(f"faults.{name}" for name in ("drop_before", "battery_empty", "drop_after", "late", "outage", "corrupt")),
        *(f"faults.{name}" for name in ("join", "leave", "poisoned", "schedule")),
    }
)
"""Options that act whatever else is chosen."""


def every_option():
    """Every option of `kfl run` that describes an experiment, of every algorithm, scheduler and cell."""
    found = {field.name for field in dataclasses.fields(kfl.Experiment)}
    found |= {f"radio.{field.name}" for field in dataclasses.fields(CellConfig)}
    found |= {f"faults.{field.name}" for field in dataclasses.fields(kfl.Experiment().faults)}
    for part, registry in REGISTRIES.items():
        found |= {f"{part}.{field.name}" for cls in registry.values() for field in dataclasses.fields(cls)}
    return found | {"algorithm.proxy_per_class"}


def test_every_option_is_judged_to_act_always_or_beside_certain_choices_only():
    """A new option fails here until it stands in `NEEDS` or below: none is forgotten."""
    judged = [*NEEDS, *COUNTED, *ALWAYS]
    assert sorted(judged) == sorted(set(judged))
    assert set(judged) == every_option()


def every_choice():
    """Experiments with every word of every field that takes words: what may make an option idle."""
    plain = kfl.Experiment()
    yield from (
        dataclasses.replace(plain, split=word)
        for word in typing.get_args(typing.get_type_hints(kfl.Experiment)["split"])
    )
    yield from (dataclasses.replace(plain, scheduler=cls()) for cls in SCHEDULERS.values())
    yield from (dataclasses.replace(plain, radio=name) for name in (None, *PRESETS))
    for cls in ALGORITHMS.values():
        yield dataclasses.replace(plain, algorithm=cls())
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            for word in typing.get_args(hints[field.name]):
                if isinstance(word, str):
                    yield dataclasses.replace(plain, algorithm=cls(**{field.name: word}))


def test_defaults_and_ready_made_cells_are_never_objected_to():
    for experiment in every_choice():
        check_idle([kfl.Experiment.from_toml(dataclasses.replace(experiment, split="shards").to_toml())])


def test_every_word_of_a_choice_is_decided():
    for needs in NEEDS.values():
        for need in needs:
            words = words_of(need.choice)
            assert not words or {need.acts(word) for word in words} == {True, False}


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("--dirichlet-alpha 0.1", "acts with split dirichlet, and split is shards"),
        ("--dirichlet-alpha 0.5", "acts with split dirichlet, and split is shards"),  # its default, but typed
        ("--split iid --classes-per-device 5", "acts with split shards or overlap, and split is iid"),
        ("--hard-budget --radio none", "acts with a radio, and radio is none"),
        ("--scheduler.count 1000 --devices 5", "at most 5, the number of devices"),
        ("--algorithm.trim 0.1", "acts with algorithm.aggregation trimmed, and algorithm.aggregation is mean"),
    ],
)
def test_commands_refuse_what_cannot_act(words, right, tmp_path, capsys):
    for command in ("run", "compare"):
        assert main([command, *words.split(), "--rounds", "1", "--out", str(tmp_path / "out")]) == 2
        assert right in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_option_that_acts_in_one_row_of_a_comparison_is_taken(capsys):
    check_idle([kfl.Experiment(dirichlet_alpha=0.1, split=split) for split in ("iid", "dirichlet")])
    assert main(["compare", "--search-seeds", "7"]) == 2
    assert "it acts with --search or --search-only" in capsys.readouterr().err


def test_a_run_of_before_is_resumed_whatever_it_holds(tmp_path):
    old = kfl.Experiment(**SMALL, dirichlet_alpha=0.1)
    world = kfl.simulation.world.build_world(old)
    done = kfl.runner.run_world(world, tmp_path / "run")
    assert kfl.resume(tmp_path / "run").accuracy == done.accuracy
    with pytest.raises(kfl.KflError, match=r"widths is .*, but must be left out where networks are given"):
        kfl.run(kfl.Experiment(**SMALL), models=lambda: None)


SMALL = {"devices": 6, "rounds": 2, "widths": (8,), "samples_per_device": 20}
TRACE = kfl.wireless.GainTrace(path="gains.csv")
IDLE = {
    "classes_per_device": ({"split": "iid"}, 5),
    "dirichlet_alpha": ({}, 0.1),
    "tested_devices": ({}, 7),
    "hard_budget": ({"radio": None}, True),
    "real_work": ({"radio": None}, True),
    "algorithm.momentum": ({"algorithm": kfl.Kfl(local_steps=1)}, 0.5),
    "algorithm.proximal": ({"algorithm": kfl.FedProx(local_steps=1)}, 0.5),
    "algorithm.trim": ({"algorithm": kfl.Kfl(aggregation="clip")}, 0.1),
    "algorithm.sketches": ({"algorithm": kfl.algorithms.CommonKnowledge(covariance="none")}, 8),
    "algorithm.server_epochs": ({"algorithm": kfl.FedGh(head="as-released")}, 3),
    "algorithm.server_learning_rate": ({"algorithm": kfl.FedGh(head="as-released")}, 0.5),
    "algorithm.server_batch_size": ({"algorithm": kfl.FedGh(head="as-released")}, 4),
    "algorithm.distill_rate": ({"algorithm": kfl.FedKd(distill_steps=0)}, 0.5),
    "algorithm.temperature": ({"algorithm": kfl.FedKd(distill_steps=0)}, 1.0),
    "algorithm.knowledge_weight": ({"algorithm": kfl.SharedStem(pull="none"), "model": "cnn"}, 0.5),
    "algorithm.scale": ({"algorithm": kfl.SharedStem(pull="none"), "model": "cnn"}, 1.0),
    "algorithm.targets": ({"algorithm": kfl.FixedKnowledge(knowledge_weight=0.0)}, "simplex"),
    "scheduler.count": ({}, 1000),
    "scheduler.v": ({"radio": None, "scheduler": "lyapunov"}, 0.5),
    "scheduler.relative_v": ({"scheduler": kfl.Lyapunov(v=0.01)}, 3.0),
    "scheduler.dearest_upload": ({"scheduler": kfl.Lyapunov(v=0.01)}, 3.0),
    "scheduler.gamma": ({"radio": None, "scheduler": "dual"}, "constant"),
    "scheduler.epsilon": ({"radio": "nb-iot", "scheduler": "lyapunov"}, 0.01),
    "scheduler.device_epsilon": ({"scheduler": "lyapunov"}, 0.5),
    "scheduler.as_printed": ({"radio": None, "scheduler": "lyapunov"}, True),
    "radio.shadowing_distance_m": ({"radio": CellConfig(shadowing_db=3.0)}, 9.0),
    "radio.receive_power_w": ({}, 0.5),
    "radio.tail_power_w": ({}, 0.5),
    "radio.tail_s": ({}, 9.0),
    "radio.round_period_s": ({}, 60.0),
    "radio.budget_j_per_round": (
        {"radio": CellConfig(battery_capacity_j=10.0, harvest="constant"), "scheduler": "lyapunov"},
        0.3,
    ),
    "faults.poison": ({}, "scale"),
}
"""Options of the table with a choice that makes each idle, and a value that changes nothing there."""
REFUSED_BY_THEMSELVES = {"widths", "availability_repeat_s", "algorithm.noise_counts", "algorithm.proxy_per_class"} | {
    *(f"algorithm.{name}" for name in ("local_steps", "learning_rate", "head_learning_rate", "batch_size")),
    *(f"radio.{name}" for name in ("shadowing_db", "mobility", "fading_correlation", "channel_error")),
    *(f"radio.{name}" for name in ("initial_charge", "harvest")),
}
"""Options whose value `validate` refuses as well, or that make no experiment."""
OF_A_TRACE = {f"radio.{name}" for name in ("radius_m", "min_distance_m", "reference_gain_db", "path_loss_exponent")}


def with_value(experiment, name, value):
    path, _, last = name.rpartition(".")
    if not path:
        return dataclasses.replace(experiment, **{last: value})
    owner = experiment.cell_config if path == "radio" else getattr(experiment, path)
    return dataclasses.replace(experiment, **{path: dataclasses.replace(owner, **{last: value})})


def result(experiment):
    world = kfl.simulation.world.build_world(experiment)
    history = kfl.runner.run_world(world)
    whole = dict(history.summary)
    # Not the status, which names the number that was asked for, nor the objective, whose unit V and γ are.
    told = ("status", "objective", "lower_bound")
    rounds = [{name: value for name, value in log.to_dict().items() if name not in told} for log in history.rounds]
    return rounds, {key: whole[key] for key in whole if key != "wall_s"}


def test_every_row_of_the_table_has_an_example():
    assert {"distinct_classes", *IDLE} | REFUSED_BY_THEMSELVES | OF_A_TRACE == set(NEEDS) | set(COUNTED)


@pytest.mark.parametrize("name", IDLE)
def test_an_idle_option_is_refused_and_really_changes_nothing(name):
    choices, value = IDLE[name]
    before = kfl.Experiment(**{**SMALL, "radio": "paper-mnist", **choices})
    after = with_value(before, name, value)
    with pytest.raises(kfl.KflError, match=f"{name} is .*, but must be (left out: it acts with|at most 6)"):
        kfl.run(after)
    check_idle([before])
    assert result(after) == result(before)
