"""A device alone: it trains once per round, keeps its model through any restart, and says no in a sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kfl.algorithms import FedMrl, Kfl
from kfl.core.errors import ConfigError, KflError
from kfl.core.files import only_one
from kfl.models import mlp
from kfl.runfolder import as_safetensors
from kfl.simulation import Experiment
from kfl_fleet import DeviceSetup
from kfl_fleet.device.memory import Memory, StoredState
from kfl_fleet.device.meters import FormulaMeter
from kfl_fleet.device.worker import Worker, make_worker
from kfl_fleet.messages.profile import Profile
from kfl_fleet.messages.protocol import PROTOCOL_VERSION
from kfl_fleet.setup import Advice, make_setup

RUN = "0123456789abcdef"


def small_model():
    return mlp(input_shape=(6,), classes=3, width=8)


def setup(**changes):
    draw = np.random.default_rng(0)
    y = np.arange(30) % 3
    x = (draw.normal(size=(30, 6)) + y[:, None]).astype(np.float32)
    return DeviceSetup(**{"model": small_model, "train_x": x, "train_y": y, "classes": 3, **changes})


def worker(tmp_path, **changes):
    return Worker(4, setup(**changes), tmp_path, FormulaMeter())


def message(round_index, algorithm=None, **changes):
    values = {
        "protocol": PROTOCOL_VERSION,
        "kind": "round",
        "run": RUN,
        "round": round_index,
        "seed": 7,
        "algorithm": json.dumps(Experiment(algorithm=algorithm or Kfl(local_steps=2)).to_table()["algorithm"]),
        "deadline_s": 5.0,
        "share": 0.25,
        "power_w": 0.5,
        "upload_time_s": 0.5,
        "compute_energy_j": 0.125,
        "upload_energy_j": 0.25,
    }
    arrays = {"knowledge": torch.zeros(3, 64), "known": torch.zeros(3, dtype=torch.bool)}
    return {**values, **changes}, arrays


def kept(tmp_path):
    return Memory(tmp_path, RUN, 4).load()


def test_a_round_is_done_once_however_often_it_is_asked_for(tmp_path):
    first, upload = worker(tmp_path).answer(*message(0))
    after = kept(tmp_path).state
    again, same = worker(tmp_path).answer(*message(0, algorithm=Kfl(local_steps=5, learning_rate=0.9)))
    assert again == first
    assert all(torch.equal(same[name], upload[name]) for name in upload)
    assert all(torch.equal(kept(tmp_path).state[name], after[name]) for name in after)
    assert first["status"] == "ok"
    assert (first["compute_energy_j"], first["upload_energy_j"]) == (0.125, 0.25)


def test_a_restart_between_rounds_changes_nothing(tmp_path):
    through = worker(tmp_path / "a")
    for round_index in range(3):
        one, _ = through.answer(*message(round_index))
        other, _ = worker(tmp_path / "b").answer(*message(round_index))
        assert {**one, "work_s": 0} == {**other, "work_s": 0}
    a, b = Memory(tmp_path / "a", RUN, 4).load(), Memory(tmp_path / "b", RUN, 4).load()
    assert all(torch.equal(a.state[name], b.state[name]) for name in a.state)


def test_an_older_round_is_refused_and_another_run_starts_from_a_new_model(tmp_path):
    device = worker(tmp_path)
    device.answer(*message(3))
    answer, arrays = device.answer(*message(2))
    assert answer["status"] == "refused"
    assert "done round 3" in answer["reason"]
    assert arrays == {}
    device.answer(*message(0, run="fedcba9876543210"))
    assert kept(tmp_path).round == 3
    assert Memory(tmp_path, "fedcba9876543210", 4).load().round == 0


def test_a_crash_while_writing_leaves_the_round_before(tmp_path, monkeypatch):
    device = worker(tmp_path)
    device.answer(*message(0))
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        device.answer(*message(1))
    monkeypatch.undo()
    assert kept(tmp_path).round == 0
    answer, _ = worker(tmp_path).answer(*message(1))
    assert answer["round"] == 1


def test_a_device_that_lost_the_result_of_a_round_does_not_train_for_it_twice(tmp_path, monkeypatch):
    """Its disk was full, or it was killed, and the server that died asks again: the energy would be spent twice."""
    worker(tmp_path).answer(*message(0))
    with monkeypatch.context() as patch:
        patch.setattr("kfl_fleet.device.memory.as_safetensors", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            worker(tmp_path).answer(*message(1))
    before = kept(tmp_path).state
    answer, arrays = worker(tmp_path).answer(*message(1))
    assert answer["status"] == "refused" and "lost the result" in answer["reason"]
    assert arrays == {} and "compute_energy_j" not in answer, "charged as planned, once"
    assert all(torch.equal(kept(tmp_path).state[name], before[name]) for name in before)
    assert worker(tmp_path).answer(*message(2))[0]["status"] == "ok"


def test_a_killed_writer_leaves_no_rubbish_behind(tmp_path):
    device = worker(tmp_path)
    device.answer(*message(0))
    rubbish = tmp_path / RUN / ".device-00004.safetensors.abc.part"
    rubbish.write_bytes(b"half")
    device.answer(*message(1))
    assert not rubbish.exists()


def test_a_damaged_file_is_named_and_not_trained_over(tmp_path):
    worker(tmp_path).answer(*message(0))
    Memory(tmp_path, RUN, 4).path.write_bytes(b"not a model")
    with pytest.raises(KflError, match="is damaged"):
        worker(tmp_path).answer(*message(1))


@pytest.mark.parametrize(
    "facts",
    ["3", "[]", "{}", '{"round": true, "answer": {}}', '{"round": 1.5, "answer": {}}', '{"round": 0, "answer": 1}'],
)
def test_memory_refuses_facts_of_another_type_in_one_sentence(tmp_path, facts):
    memory = Memory(tmp_path, RUN, 4)
    memory.path.parent.mkdir()
    memory.path.write_bytes(as_safetensors({"state/a": torch.ones(2)}, {"kfl": facts}))
    with pytest.raises(KflError, match="is damaged") as refused:
        memory.load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "one", "1.5", "-2", "9" * 5000, "\x00", "é"])
def test_device_does_not_train_when_the_note_of_the_round_it_began_is_damaged(tmp_path, text):
    worker(tmp_path).answer(*message(0))
    Memory(tmp_path, RUN, 4).path.with_suffix(".began").write_text(text)
    with pytest.raises(KflError, match=r"began is damaged"):
        worker(tmp_path).answer(*message(1))


def test_a_model_that_runs_off_to_infinity_is_not_kept_and_nothing_is_sent(tmp_path):
    device = worker(tmp_path)
    device.answer(*message(0))
    before = kept(tmp_path).state
    answer, arrays = device.answer(*message(1, algorithm=Kfl(learning_rate=1e20, local_steps=20)))
    assert answer["status"] == "diverged"
    assert arrays == {}
    assert all(torch.equal(kept(tmp_path).state[name], before[name]) for name in before)
    assert answer["upload_energy_j"] == 0.0
    assert answer["compute_energy_j"] == 0.125


def test_other_versions_unknown_questions_and_strange_runs_are_refused(tmp_path):
    device = worker(tmp_path)
    for changes, said in (
        ({"protocol": 7}, "version 7"),
        ({"kind": "dance"}, "does not know"),
        ({"run": "../../etc"}, "name of its run"),
        ({"round": -1}, "round is -1"),
        ({"algorithm": "{"}, "algorithm is not one"),
        ({"algorithm": '{"name": "nonsense"}'}, "algorithm is not one"),
        ({"share": "much"}, "share is not a number"),
    ):
        values, knowledge = message(0)
        answer, arrays = device.answer({**values, **changes}, knowledge)
        assert answer["status"] == "refused"
        assert said in answer["reason"]
        assert arrays == {}
    assert not (tmp_path / RUN).exists() or kept(tmp_path) is None


def test_a_device_busy_with_an_earlier_round_says_so_after_the_deadline(tmp_path):
    memory = Memory(tmp_path, RUN, 4)
    memory.path.parent.mkdir(parents=True)
    with only_one(memory.path.with_suffix(".lock")):
        answer, _ = worker(tmp_path).answer(*message(0, deadline_s=0.2))
    assert "busy with an earlier round" in answer["reason"]


def test_the_advice_reaches_the_devices_own_hook(tmp_path):
    heard = []
    worker(tmp_path, apply=heard.append).answer(*message(0))
    assert heard == [Advice(0, 0.25, 0.5, 0.5, 0.125, 0.25, 5.0)]


def test_the_profile_tells_what_the_device_has_and_hides_counts_where_asked(tmp_path):
    device = worker(tmp_path, cpu_hz=1e9, max_power_w=0.5, budget_j=float("inf"))
    values, _ = device.answer(*message(0, kind="profile"))
    profile = Profile.read(values)
    assert profile.device == 4
    assert sum(profile.samples_per_class) == profile.samples == 24
    assert profile.test_samples == 6
    assert (profile.cpu_hz, profile.budget_j) == (1e9, float("inf"))
    private = Kfl(clip_norm=1.0, noise_multiplier=1.0, noise_counts=True)
    hidden = Profile.read(device.answer(*message(0, kind="profile", algorithm=private))[0])
    assert hidden.samples_per_class == ()
    assert kept(tmp_path).round == -1, "the first model is kept from the start"


@pytest.mark.parametrize(
    "algorithm",
    [
        Kfl(local_steps=2, clip_norm=1.0, noise_multiplier=0.5),
        Kfl(local_steps=2, clip_norm=1.0, noise_multiplier=0.5, noise_counts=True),
    ],
    ids=["means", "means and counts"],
)
def test_privacy_noise_is_the_devices_own_and_not_the_seeds(algorithm, tmp_path):
    """The server knows the seed: noise that follows from it could be subtracted."""
    plain = replace(algorithm, noise_multiplier=0.0, noise_counts=False)
    _, exact = worker(tmp_path / "plain").answer(*message(0, plain))
    seen = [worker(tmp_path / name).answer(*message(0, algorithm))[1] for name in "abcdefgh"]
    noise = torch.stack([arrays["means"] - exact["means"] for arrays in seen])
    assert len({float(one.sum()) for one in noise}) == len(seen)
    together = torch.corrcoef(noise.flatten(1)) - torch.eye(len(seen))
    assert float(together.abs().max()) < 0.4  # independent from device to device and from try to try
    # Without noise two devices alike answer alike.
    assert torch.equal(exact["means"], worker(tmp_path / "again").answer(*message(0, plain))[1]["means"])


def test_a_module_keeps_the_weights_it_came_with_and_a_function_draws_them_by_name(tmp_path):
    module = mlp(input_shape=(6,), classes=3, width=8)
    worker(tmp_path / "module", model=module).answer(*message(0, kind="profile"))
    state = Memory(tmp_path / "module", RUN, 4).load().state
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    for name in ("x", "y"):
        worker(tmp_path / name).answer(*message(0, kind="profile"))
    x, y = (Memory(tmp_path / name, RUN, 4).load().state for name in ("x", "y"))
    assert all(torch.equal(x[name], y[name]) for name in x)


def test_what_an_algorithm_puts_around_a_module_is_trained_and_kept(tmp_path):
    module = small_model()
    device = worker(tmp_path, model=module)
    algorithm = FedMrl(local_steps=2, small_width=4)
    told = Profile.read(device.answer(*message(0, algorithm, kind="profile"))[0])
    own = sum(value.numel() for value in module.parameters())
    assert told.parameters == own + algorithm.added_parameters(told.for_engine())
    start = kept(tmp_path).state
    assert torch.equal(start["head.own.weight"], module.head.weight)
    server = {name: value for name, value in start.items() if ".small." in name}
    before = None
    for round_index in range(2):
        values, _ = message(round_index, algorithm)
        answer, upload = worker(tmp_path, model=module).answer(values, server)  # in a process of its own
        assert answer["status"] == "ok" and upload.keys() == {*server, "samples"}
        now = kept(tmp_path).state["body.projector.weight"]
        assert before is None or not torch.equal(now, before)
        before = now
    answer, _ = device.answer(*message(0, run="fedcba9876543210"))  # and KFL trains the module alone
    assert answer["status"] == "ok"
    assert Memory(tmp_path, "fedcba9876543210", 4).load().state.keys() == module.state_dict().keys()


def test_a_device_without_test_samples_is_a_device(tmp_path):
    empty = {"test_x": np.zeros((0, 6), np.float32), "test_y": np.zeros(0, np.int64)}
    answer, _ = worker(tmp_path, **empty).answer(*message(0))
    assert (answer["status"], answer["correct"]) == ("ok", 0)


def test_memory_keeps_bits_and_types(tmp_path):
    state = {"a": torch.tensor([1.5, -0.0]), "b": torch.tensor(3), "c": torch.tensor([True, False])}
    memory = Memory(tmp_path, RUN, 9)
    memory.save(StoredState(2, state, {"a": torch.ones(2, dtype=torch.float64)}, {"status": "ok", "x": 0.1}))
    found = memory.load()
    assert found.answer == {"status": "ok", "x": 0.1}
    assert found.upload["a"].dtype == torch.float64
    for name, value in state.items():
        assert torch.equal(found.state[name], value)
        assert found.state[name].dtype == value.dtype


def test_a_wrong_node_configuration_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="partition-id"):
        make_worker({}, {"device": "kfl_fleet.device.simulated:device"})
    with pytest.raises(ConfigError, match=r"package.module:function"):
        make_worker({"partition-id": 0}, {})
    with pytest.raises(ConfigError, match="can be imported"):
        make_worker({"partition-id": 0, "device": "no_such_module:device"}, {})
    with pytest.raises(ConfigError, match="returns a DeviceSetup, not tuple"):
        make_setup("builtins:divmod", 7, 2)
    with pytest.raises(ConfigError, match="cpu_hz"):
        setup(cpu_hz=-1.0).validate()


def test_bytes_of_a_device_are_divided_by_255_unless_it_says_otherwise():
    x = np.random.default_rng(0).integers(0, 256, (30, 6), dtype=np.uint8)
    assert float(setup(train_x=x).dataset().inputs("train").max()) <= 1.0
    assert float(setup(train_x=x, scale=1.0).dataset().inputs("train").max()) > 1.0
