"""Whole runs on small data: they repeat, they add up, and their folders can be trusted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.core.errors import ConfigError, DataError, KflError, ModelError, RunFolderError
from kfl.engine.autograd import AutogradEngine
from kfl.simulation import build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless.costs import compute_energy
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(devices=8, rounds=4, widths=(8, 12), scheduler=kfl.Uniform(count=3))


@pytest.fixture(scope="module")
def data():
    return toy_data(480)


def play(experiment, data, **more):
    one = replace(experiment, widths=None) if "models" in more else experiment
    return kfl.run(one, dataset=data, **more)


def test_a_network_that_no_memory_holds_is_one_sentence(data):
    with pytest.raises(KflError, match=r"not enough memory for this; .*--widths"):
        play(replace(SMALL, widths=(10**10,)), data)


def test_a_budget_next_to_nothing_is_spent_many_times_over_without_a_warning(data):
    history = play(replace(SMALL, radio=kfl.CellConfig(budget_j_per_round=5e-324)), data)
    assert history.summary["devices_over_budget"] > 0


def test_same_seed_same_run_and_another_seed_another(data):
    first, again = play(SMALL, data), play(SMALL, data)
    assert first.rounds == again.rounds
    assert first.devices == again.devices
    assert play(replace(SMALL, seed=1), data).rounds != first.rounds


def test_the_global_random_state_is_neither_read_nor_changed(data):
    torch.manual_seed(5)
    first, state = play(SMALL, data), torch.get_rng_state()
    torch.manual_seed(6)
    assert play(SMALL, data).rounds == first.rounds
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_device_that_sits_out_keeps_its_state(data):
    fleet = SimulatedFleet(build_world(SMALL, dataset=data))
    state = begin(fleet)
    for _ in range(3):
        before = {k: fleet.device_state(state, k) for k in range(8)}
        state, log = play_round(fleet, state)
        for k in range(8):
            same = all(torch.equal(before[k][n], v) for n, v in fleet.device_state(state, k).items())
            assert same == (k not in log.devices)


def test_playing_a_round_twice_from_one_state_gives_the_same(data):
    fleet = SimulatedFleet(build_world(SMALL, dataset=data))
    state, _ = play_round(fleet, begin(fleet))
    one, two = play_round(fleet, state), play_round(fleet, state)
    assert one[1] == two[1]


def test_accuracy_counts_all_devices_scheduled_or_not(data):
    world = build_world(SMALL, dataset=data)
    fleet = SimulatedFleet(world)
    state = begin(fleet)
    for _ in range(2):
        state, log = play_round(fleet, state)
    right = tests = 0
    for k in range(8):
        right += world.engine.correct([k], [fleet.device_state(state, k)])[0]
        tests += int(world.table.test_samples[k])
    assert log.accuracy == right / tests


def test_testing_fewer_devices_changes_nothing_else(data):
    everyone, some = play(SMALL, data), play(replace(SMALL, tested_devices=3), data)
    for one, other in zip(everyone.rounds, some.rounds, strict=True):
        assert replace(one, accuracy=None) == replace(other, accuracy=None)
    tested = [device for device in some.devices if device["test_samples"]]
    assert len(tested) == 3
    assert all(device["accuracy"] is None for device in some.devices if device not in tested)
    for device in tested:
        assert device["accuracy"] == everyone.devices[device["device"]]["accuracy"]
    right = sum(device["accuracy"] * device["test_samples"] for device in tested)
    assert some.accuracy == pytest.approx(right / sum(device["test_samples"] for device in tested), rel=1e-12)


def test_a_fleet_that_holds_more_samples_than_there_are(data):
    large = replace(SMALL, devices=500, split="overlap", samples_per_device=20, tested_devices=5)
    history = play(large, data)
    assert sum(device["samples"] for device in history.devices) == 10_000 > len(data.train_y)
    assert history.rounds == play(large, data).rounds
    assert history.accuracy is not None


@pytest.mark.parametrize("every", [2, 3])
def test_testing_less_often_changes_nothing_else(data, every):
    often, seldom = play(SMALL, data), play(replace(SMALL, evaluate_every=every), data)
    assert often.accuracy == seldom.accuracy
    for one, other in zip(often.rounds, seldom.rounds, strict=True):
        assert other.accuracy in (None, one.accuracy)
        assert replace(one, accuracy=None) == replace(other, accuracy=None)


class Watched(AutogradEngine):
    """An engine that writes down whose models it was asked to test."""

    def __init__(self, world):
        super().__init__(world.engine._data, world.engine._models)
        self.asked = []

    def correct(self, devices, states):
        self.asked.append(list(devices))
        return super().correct(devices, states)


@pytest.mark.parametrize("name", ["kfl", "fedavg"])
def test_only_devices_whose_predictions_may_have_changed_are_tested(data, name):
    experiment = replace(SMALL, algorithm=kfl.algorithms.ALGORITHMS[name](), widths=(8,), rounds=7, evaluate_every=3)
    world = build_world(experiment, dataset=data)
    engine = Watched(world)
    fleet = SimulatedFleet(replace(world, engine=engine))
    state, changed, expected = begin(fleet), set(), [list(range(8))]
    for number in range(1, 8):
        state, log = play_round(fleet, state)
        changed |= set(log.devices)
        if number in (3, 6, 7):
            # A model that all share changes for all.
            expected.append(sorted(changed) if name == "kfl" else list(range(8)))
            changed = set()
    assert engine.asked == expected
    assert name != "kfl" or any(len(some) < 8 for some in expected)


def test_energy_and_bits_follow_the_papers_formulas(data):
    world = build_world(SMALL, dataset=data)
    history = play(SMALL, data)
    radio = SMALL.cell_config
    for log in history.rounds:
        link = world.cell.link_state(log.round, world.table.flops, world.table.bits_up)
        for place, k in enumerate(log.devices):
            profile = world.engine.profile(k)
            work = 5 * profile.samples * profile.model.flops  # τ D C
            expected = compute_energy(
                work, world.cell.hardware.cpu_hz[k], radio.flops_per_cycle, radio.power_coefficient
            )
            assert log.compute_energy_j[place] == pytest.approx(float(expected), rel=1e-12)
            time_s, band = link.uplink.upload_time_s[k], log.share[place] * radio.bandwidth_hz
            power = band * radio.noise_w_per_hz / link.uplink.gain[k] * (2 ** (64 * 4 * 32 / (band * time_s)) - 1)
            assert log.power_w[place] == pytest.approx(power, rel=1e-6)
            assert log.upload_energy_j[place] == pytest.approx(power * time_s, rel=1e-6)
        assert log.bits_up == 64 * 4 * 32 * len(log.devices)
        assert sum(log.share) <= 1 + 1e-12
        assert log.time_s <= radio.deadline_s * (1 + 1e-9)
    summary = history.summary
    assert summary["energy_j"] == pytest.approx(
        sum(d["compute_energy_j"] + d["upload_energy_j"] for d in history.devices)
    )
    assert summary["uploads"] == sum(d["rounds"] for d in history.devices) == 12
    assert summary["fedavg_bits_up"] == sum(
        32 * history.devices[k]["parameters"] for log in history.rounds for k in log.devices
    )


def test_without_a_radio_nothing_costs_energy(data):
    history = play(replace(SMALL, radio="none"), data)
    assert history.energy_j == 0
    assert history.rounds[0].devices == play(SMALL, data).rounds[0].devices


def test_knowledge_helps_or_not_but_learning_happens(data):
    history = play(replace(SMALL, rounds=25), data)
    assert history.rounds[0].accuracy < history.accuracy
    assert history.accuracy > 0.8


def test_own_models_and_a_function_of_the_device(data):
    def build(device):
        torch.manual_seed(device)
        width = 6 + device
        return kfl.SplitModel(
            nn.Sequential(nn.Flatten(), nn.Linear(25, width), nn.ReLU(), nn.Linear(width, 9)), nn.Linear(9, 4)
        )

    history = play(SMALL, data, models=build)
    assert history.rounds == play(SMALL, data, models=[build(k) for k in range(8)]).rounds
    assert len({record["parameters"] for record in history.devices}) == 8
    assert history.rounds[0].bits_up == 9 * 4 * 32 * 3


def test_a_run_folder_holds_everything_and_can_be_read_back(data, tmp_path):
    history = play(SMALL, data, folder=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        ".lock",
        "config.toml",
        "environment.json",
        "rounds.jsonl",
        "devices.json",
        "server.npz",
        "models",
        "summary.json",
        "trail.jsonl",
    }
    experiment, loaded = kfl.load_run(tmp_path / "run")
    assert experiment == replace(SMALL, radio=experiment.radio, hard_budget=True).resolved()
    assert loaded.rounds == history.rounds
    assert loaded.devices == history.devices
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["schema_version"] == 1
    assert environment["given_as_objects"] == ["dataset"]
    with np.load(tmp_path / "run" / "server.npz", allow_pickle=False) as arrays:
        assert arrays["knowledge"].shape == (4, 64)
        assert arrays["known"].all()


def test_a_finished_run_is_read_not_repeated_and_another_config_refused(data, tmp_path):
    play(SMALL, data, folder=tmp_path)
    calls = []
    again = play(SMALL, data, folder=tmp_path, on_round=calls.append)
    assert not calls
    assert again.accuracy == kfl.load_run(tmp_path)[1].accuracy
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(RunFolderError, match="rounds: 4 → 5"):
        play(replace(SMALL, rounds=5), data, folder=tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_a_crash_leaves_whole_lines_and_a_torn_line_is_ignored(data, tmp_path):
    class PowerCutError(Exception):
        pass

    def cut(log):
        if log.round == 1:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        play(SMALL, data, folder=tmp_path, on_round=cut)
    assert len(kfl.load_run(tmp_path)[1].rounds) == 2
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')
    assert len(kfl.load_run(tmp_path)[1].rounds) == 2
    assert not (tmp_path / "summary.json").exists()
    assert play(SMALL, data, folder=tmp_path).rounds == play(SMALL, data).rounds
    assert len(kfl.load_run(tmp_path)[1].rounds) == 4


def test_a_folder_with_other_things_in_it_is_left_alone(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunFolderError, match="not empty"):
        play(SMALL, data, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"devices": 0}, ConfigError, ["devices", "0", "1 or more"]),
        ({"rounds": -3}, ConfigError, ["rounds", "-3", "1 or more"]),
        ({"dataset": "imagenet"}, ConfigError, ["dataset", "imagenet", "mnist-5k"]),
        ({"algorithm": kfl.Kfl(learning_rate=float("nan"))}, ConfigError, ["learning_rate", "nan", "above 0"]),
        ({"algorithm": kfl.Kfl(knowledge_weight=-1.0)}, ConfigError, ["knowledge_weight", "-1"]),
        ({"algorithm": kfl.Local(batch_size=0)}, ConfigError, ["batch_size", "0"]),
        ({"widths": ()}, ConfigError, ["widths"]),
        ({"radio": "moon"}, ConfigError, ["radio", "moon", "paper-mnist"]),
        ({"radio": kfl.CellConfig(bandwidth_hz=0.0)}, ConfigError, ["bandwidth_hz", "0.0"]),
        ({"classes_per_device": 0}, ConfigError, ["classes_per_device"]),
        ({"devices": 400}, DataError, ["shards", "samples"]),
        ({"model": "resnet"}, ConfigError, ["model", "resnet", "mlp"]),
        ({"model": "cnn"}, ModelError, ["cnn", "16×16"]),
    ],
)
def test_bad_input_is_one_sentence(data, change, kind, words):
    with pytest.raises(kind) as problem:
        play(replace(SMALL, **change), data)
    sentence = str(problem.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert isinstance(problem.value, KflError)


def test_models_whose_features_differ_are_refused_before_anything_runs(data, tmp_path):
    def build(device):
        size = 8 + device // 7
        return kfl.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(25, size)), nn.Linear(size, 4))

    with pytest.raises(ModelError, match=r"device 7.*length 9.*8"):
        play(SMALL, data, models=build, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_whole_resource_blocks(data):
    history = play(replace(SMALL, radio=kfl.CellConfig(resource_blocks=7)), data)
    for log in history.rounds:
        assert len(log.devices) == 3
        assert all(abs(share * 7 - round(share * 7)) < 1e-9 and share > 0 for share in log.share)
        assert sum(log.share) <= 1 + 1e-12
    free = play(replace(SMALL, radio=kfl.CellConfig()), data)
    assert sum(sum(log.upload_energy_j) for log in history.rounds) >= sum(
        sum(log.upload_energy_j) for log in free.rounds
    )


def test_a_server_that_knows_the_channel_badly_loses_uploads(data):
    history = play(replace(SMALL, radio=kfl.CellConfig(channel_error=0.3), rounds=20), data)
    lost = sum(len(log.lost) for log in history.rounds)
    assert 0 < lost == history.summary["lost_uploads"]
    careful = kfl.CellConfig(channel_error=0.3, channel_margin_db=30.0)
    assert play(replace(SMALL, radio=careful, rounds=20), data).summary["lost_uploads"] < lost


def test_a_broadcast_that_is_counted_takes_time(data):
    free = play(replace(SMALL, radio=kfl.CellConfig()), data)
    # So weak a server that its 8,192 bits take a noticeable part of the second.
    counted = play(replace(SMALL, radio=kfl.CellConfig(downlink_power_dbm=-35.0)), data)
    assert all(log.time_s <= 1 + 1e-9 for log in counted.rounds)
    assert [log.devices for log in counted.rounds] == [log.devices for log in free.rounds]
    assert sum(sum(log.upload_energy_j) for log in counted.rounds) > sum(
        sum(log.upload_energy_j) for log in free.rounds
    )


@pytest.mark.parametrize("error", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("margin_db", [0.0, 3.0])
@pytest.mark.parametrize("power_dbm", [-35.0, -20.0, 30.0])
def test_a_channel_that_is_known_badly_breaks_no_deadline(data, error, margin_db, power_dbm):
    cell = kfl.CellConfig(channel_error=error, channel_margin_db=margin_db, downlink_power_dbm=power_dbm)
    history = play(replace(SMALL, radio=cell, rounds=12), data)
    assert all(log.time_s <= 1 + 1e-9 and log.broadcast_s <= log.reserved_s for log in history.rounds)
    missed = sum(len(log.missed) for log in history.rounds)
    assert history.summary["missed_broadcasts"] == missed and (missed > 0) == (error > 0)


def test_who_misses_the_broadcast_does_nothing(data):
    cell = kfl.CellConfig(channel_error=0.3, downlink_power_dbm=-35.0)
    fleet = SimulatedFleet(build_world(replace(SMALL, radio=cell, rounds=12), dataset=data))
    state, missed = begin(fleet), 0
    for _ in range(12):
        before, (state, log) = state, play_round(fleet, state)
        for device in log.missed:
            place = log.devices.index(device)
            assert log.compute_energy_j[place] == log.upload_energy_j[place] == 0
            old, new = fleet.device_state(before, device), fleet.device_state(state, device)
            assert all(torch.equal(old[name], value) for name, value in new.items())
            assert device not in log.used and device not in log.lost
            assert [one.kind for one in log.incidents() if one.device == device] == ["missed"]
            missed += 1
        reached = set(log.devices) - set(log.missed)
        assert log.bits_up == fleet.table.bits_up[list(reached)].sum()
    assert missed > 3


def test_an_own_scheduler_and_algorithm_by_name(data, tmp_path, monkeypatch):
    (tmp_path / "my_ideas.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import numpy as np\n"
        "import kfl\n"
        "from kfl.scheduling import Scheduler, serve\n"
        "@dataclass(frozen=True)\n"
        "class Nearest(Scheduler):\n"
        "    name: ClassVar[str] = 'nearest'\n"
        "    count: int = 2\n"
        "    def decide(self, state, observation):\n"
        "        chosen = np.zeros(len(observation.samples), dtype=bool)\n"
        "        chosen[np.argsort(-observation.uplink.gain)[: self.count]] = True\n"
        "        return serve(observation, chosen, np.ones(len(chosen)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = {**SMALL.to_table(), "scheduler": {"name": "my_ideas:Nearest", "count": 4}}
    experiment = kfl.Experiment.from_table(table)
    assert kfl.Experiment.from_toml(experiment.to_toml()) == experiment
    history = play(experiment, data, folder=tmp_path / "run")
    assert all(len(log.devices) == 4 for log in history.rounds)
    assert "my_ideas:Nearest" in json.loads((tmp_path / "run" / "environment.json").read_text())["sources"]
    with pytest.raises(ConfigError, match="derives from Scheduler"):
        kfl.Experiment.from_table({"scheduler": "math:sqrt"})
