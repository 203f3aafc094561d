"""The server and its devices in one process, with real messages: the simulator's numbers, and faults of all kinds."""

import json
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from kfl.algorithms import (
    Algorithm,
    ArrayFormat,
    CommonKnowledge,
    FedAvg,
    FederatedDistillation,
    FedGh,
    FedMrl,
    FedTgp,
    Kfl,
    LgFedAvg,
    Local,
    Rejection,
    SharedStem,
    Upload,
    usable,
)
from kfl.core.errors import ConfigError, KflError
from kfl.core.refusals import describe, stored_refusal
from kfl.engine import Distillation, Supervised
from kfl.models.zoo import linear
from kfl.runfolder import RunFolder
from kfl.scheduling import SCHEDULERS
from kfl.simulation import load_run, run
from kfl.wireless import CellConfig, SolarHarvest
from kfl_fleet import DeviceSetup, ServerConfig
from kfl_fleet._flower.names import ConfigRecord, Message, RecordDict
from kfl_fleet.server.app import FleetServer
from kfl_fleet.server.messaging import Courier
from kfl_fleet.server.status import read_status
from tests.fleet.conftest import serve
from tests.fleet.messages import changed, round_of, with_array

TRACES = Path(__file__).parents[2] / "examples" / "traces"
MOVING = CellConfig(
    mobility="waypoint", shadowing_db=6.0, fading="rician", fading_correlation=0.5, round_period_s=20_000.0
)
PANELS = CellConfig(
    battery_capacity_j=4.0, initial_charge=0.5, harvest=SolarHarvest(peak_w=1e-4), round_period_s=20_000.0
)
WHOLE = CellConfig(
    bandwidth_hz=1e5,
    min_cpu_hz=1e7,
    static_power_w=0.01,
    circuit_power_w=0.3,
    amplifier_efficiency=0.4,
    connect_energy_j=0.001,
    tail_power_w=0.01,
    tail_s=0.1,
)


def knowledge(folder):
    with np.load(folder / "server.npz") as found:
        return {name: found[name] for name in found.files}


def refusal_text(entry):
    return describe(*stored_refusal(entry))


@dataclass(frozen=True)
class Anchored(Algorithm):
    """An unregistered algorithm, with arrays of its own and training on the server."""

    name: ClassVar[str] = "anchored"
    needs_equal_models: ClassVar[bool] = True

    def server_init(self, engine, seed):
        return {"teacher." + name: value for name, value in engine.initial(0, seed, common=True).items()}

    def broadcast(self, server):
        return {"mean": server["teacher.head.bias"]}

    def local_update(self, message, devices, states, engine, key):
        trained = engine.train(devices, states, Supervised(), self.sgd(), key)
        uploads = [
            Upload(
                device,
                {"push": state["head.bias"] - message["mean"], "held": torch.tensor(engine.profile(device).samples)},
            )
            for device, state in zip(devices, trained, strict=True)
        ]
        return trained, uploads

    def upload_format(self, server):
        return {"push": ArrayFormat.like(server["teacher.head.bias"]), "held": ArrayFormat((), "int64", "samples")}

    def aggregate(self, server, uploads, *, engine, key):
        good, rejected = usable(uploads, self.upload_format(server))
        if not good:
            return server, rejected
        teacher = {name.removeprefix("teacher."): value for name, value in server.items()}
        teacher["head.bias"] = teacher["head.bias"] + sum(u.arrays["push"] * u.arrays["held"] for u in good) / 1000
        shape = (2 * engine.classes, teacher["body.1.weight"].shape[1])
        draw = torch.Generator().manual_seed(key.torch_seed("samples of the server", 0))
        task = torch.randn(shape, generator=draw), torch.randn(shape[0], engine.classes, generator=draw)
        (teacher,) = engine.train([0], [teacher], Distillation(2.0), self.sgd(), replace(key, phase=9), task)
        return {"teacher." + name: value for name, value in teacher.items()}, rejected

    def bits(self, profile):
        return 352, 320


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": Anchored(local_steps=2), "widths": (32,)},
        {"algorithm": Kfl(batch_size=100, local_steps=2, bits_per_value=4)},
        {"algorithm": FedAvg(local_steps=2), "widths": (32,)},
        {"algorithm": SharedStem(local_steps=2), "model": "cnn", "widths": (8, 16)},
        {"algorithm": SharedStem(local_steps=2, bits_per_value=4, pull="knowledge"), "model": "cnn", "widths": (8, 16)},
        {"algorithm": LgFedAvg(local_steps=2, bits_per_value=3), "widths": (8, 16)},
        {"algorithm": FederatedDistillation(local_steps=2)},
        {"algorithm": FedTgp(local_steps=2, server_epochs=3, bits_per_value=4)},
        {"algorithm": FedGh(local_steps=2)},
        {"algorithm": FedMrl(local_steps=2, small_width=8), "widths": (32, 48), "real_work": True},
        {"algorithm": Local(local_steps=2), "real_work": True},
        {
            "algorithm": CommonKnowledge(worth_of="samples"),
            "encoder": "raw",
            "radio": CellConfig(bandwidth_hz=1e6, deadline_s=2.0),
        },
        {"radio": CellConfig(bandwidth_hz=1e6, resource_blocks=8, channel_error=0.3, fading_correlation=0.5)},
        {"radio": CellConfig(channel_error=0.3, downlink_power_dbm=-20.0)},
        {"radio": WHOLE},
        {"radio": MOVING, "availability_trace": str(TRACES / "availability.csv")},
        {"radio": PANELS, "hard_budget": True, "scheduler": SCHEDULERS["uniform"](count=3)},
        {"radio": None, "scheduler": SCHEDULERS["round-robin"](count=2)},
    ],
    ids=[
        "lyapunov",
        "unregistered",
        "quantized batches",
        "fedavg",
        "shared stem",
        "shared stem and knowledge",
        "shared head in few bits",
        "fd",
        "fedtgp in few bits",
        "fedgh",
        "something around each network",
        "local",
        "common knowledge",
        "blocks and outages",
        "missed broadcasts",
        "whole devices",
        "moving devices that come and go",
        "batteries that fill",
        "no radio",
    ],
)
def test_a_fleet_does_what_the_simulator_does(loop, serve_fleet, small, tmp_path, changes):
    grid, config = loop(small(**changes), quorum=0.0, largest_weight=1.0)  # the simulator knows no quorum, and no liars
    folder = serve_fleet(grid, config)
    run(config.experiment, tmp_path / "simulated")
    mine, theirs = knowledge(folder), knowledge(tmp_path / "simulated")
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value)
    (_, history), (_, twin) = load_run(folder), load_run(tmp_path / "simulated")
    measured = {"time_s": 0.0, "broadcast_s": None}  # simulated seconds here, real ones there
    if not config.experiment.algorithm.predicts_alone:
        measured["accuracy"] = None  # a real device tells how well the model did that it was sent, not the next one
    for ours, other in zip(history.rounds, twin.rounds, strict=True):
        faults = tuple(
            fault for fault in ours.faults if fault["fault"] != "outage"
        )  # the simulator only counts it lost
        assert replace(ours, faults=faults, **measured) == replace(other, **measured)
    foreseen = ("random_devices", "least_energy_j")  # for real devices what others would have spent is unknown
    unlike = {"wall_s", "faults", *foreseen, *measured, *(["best_accuracy"] if "accuracy" in measured else [])}
    assert {k: v for k, v in history.summary.items() if k not in unlike} == {
        k: v for k, v in twin.summary.items() if k not in unlike
    }
    measured["privacy"] = None  # only real devices have some to spend
    for ours, other in zip(history.devices, twin.devices, strict=True):
        assert {k: v for k, v in ours.items() if k not in measured} == {
            k: v for k, v in other.items() if k not in measured
        }
    missed, cell = sum(one.missed for one in read_status(folder).devices), config.experiment.radio
    assert missed == history.summary["missed_broadcasts"]
    assert bool(missed) == (isinstance(cell, CellConfig) and cell.downlink_power_dbm is not None)
    assert all(bool(log.clock_hz) == (cell == WHOLE) for log in history.rounds if log.devices)
    if config.experiment.radio is not None:
        assert runpy.run_path("studies/recompute_run.py")["main"](folder) == 0


def test_the_standard_fleet_has_unequal_shares_and_a_device_that_sits_out(small):
    history = run(small())
    assert len(set(history.rounds[0].share)) == 4
    assert any(len(log.devices) < 4 for log in history.rounds)
    assert len({device["model"] for device in history.devices}) == 3


MISCHIEF = {  # one of each kind; tests/fleet/test_validation.py has them all
    "nan": (lambda r: with_array(r, "means", np.full((10, 64), np.nan, np.float32)), "not a number"),
    "counts": (lambda r: with_array(r, "counts", np.full(10, 10**9)), "more than the"),
    "device": (lambda r: changed(r, device=3), "of device 3"),
    "status": (lambda r: changed(r, status="\x1b[31mhaha"), "its status is haha"),
    "data changed": (lambda r: changed(r, digest="0000"), "asked again"),
}


@pytest.mark.parametrize("what", MISCHIEF)
def test_an_answer_that_cannot_be_true_is_refused_and_the_others_count(loop, small, tmp_path, what):
    twist, said = MISCHIEF[what]
    grid, config = loop(small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1)))
    grid.twist = lambda device, asked, reply: twist(reply) if device == 1 and round_of(asked) == 0 else reply
    serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    log = history.rounds[0]
    assert [r["device"] for r in log.rejected] == [1]
    assert said in Rejection.from_dict(log.rejected[0]).describe()
    honest = knowledge(tmp_path / "run")
    held = {c for d in history.devices if d["device"] != 1 for c in d["classes"]}
    assert set(np.flatnonzero(honest["known"]).tolist()) == held
    assert np.isfinite(honest["knowledge"]).all()


def test_energy_that_cannot_be_true_is_charged_as_planned_and_the_upload_is_used(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1)))
    lies = {0: float("nan"), 1: -1.0, 2: 1e9, 3: 0.25}  # the plan is 0.14 J
    grid.twist = lambda d, asked, r: changed(r, compute_energy_j=lies[d]) if round_of(asked) == 0 else r
    serve(grid, config, tmp_path / "run")
    log = load_run(tmp_path / "run")[1].rounds[0]
    planned = run(config.experiment).rounds[0].compute_energy_j
    assert log.compute_energy_j == (*planned[:3], 0.25)
    assert [f["device"] for f in log.faults if f["fault"] == "energy"] == [0, 1, 2]
    assert log.rejected == ()
    assert log.bits_up == 4 * 64 * 10 * 32


def test_reported_energy_drives_the_queues(loop, small, tmp_path):
    grid, config = loop(small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1)))
    grid.node_config = {device: {"meter": "fake:3.5"} for device in range(4)}
    serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    assert set(history.rounds[0].compute_energy_j) == {3.5}
    allowance = config.experiment.cell_config.budget_j_per_round
    upload = history.rounds[0].upload_energy_j[0]
    for device in history.devices:
        spent = device["compute_energy_j"] + device["upload_energy_j"]
        if device["rounds"] == 1:
            assert device["queue_j"] == pytest.approx(3.5 + upload - 2 * allowance, abs=1e-6)
        assert spent == pytest.approx(3.5 * device["rounds"], abs=1e-6)


def test_devices_that_are_silent_late_or_gone_cost_a_deadline_and_not_the_round(loop, small, tmp_path):
    grid, config = loop(small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]()))

    def twist(device, asked, reply):
        if round_of(asked) is None:
            return reply
        if device == 0:
            return None
        if device == 1 and round_of(asked) == 0:
            grid.online.pop(1001)  # dies after it answered: its node is gone in the next round
        return reply

    grid.twist = twist
    serve(grid, config, tmp_path / "run")
    first, second = load_run(tmp_path / "run")[1].rounds
    assert first.devices == (0, 1, 2, 3)
    assert first.lost == (0,)
    assert first.faults[0]["fault"] == "late"
    assert second.devices == (0, 2, 3)
    assert first.compute_energy_j[0] > 0, "a silent device may have worked, and is charged as planned"


def test_flowers_own_error_replies_are_matched_by_message_not_by_sender(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1)))
    asked_profiles = []

    def twist(device, asked, reply):
        if round_of(asked) is None:
            asked_profiles.append(device)
            if len(asked_profiles) == 4:
                grid.leaving = 1002
        elif device == 2:
            from kfl_fleet._flower.names import Error

            error = Message(Error(5, "Node /var/lib Unavailable\n" * 50), reply_to=asked)
            error.metadata.__dict__["_src_node_id"] = 1
            return error
        return reply

    grid.twist = twist
    serve(grid, config, tmp_path / "run")
    log = load_run(tmp_path / "run")[1].rounds[0]
    assert log.lost == (2,)
    assert log.faults[0]["fault"] == "gone"
    assert "/" not in refusal_text(log.faults[0])
    assert 0 < len(refusal_text(log.faults[0])) <= 200


def test_too_few_answers_change_nothing_but_the_round_passes(loop, small, tmp_path):
    grid, config = loop(small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1)), quorum=0.75)
    grid.twist = lambda d, asked, r: None if d in (0, 1) and round_of(asked) == 0 else r
    serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    assert history.rounds[0].status.code == "no_quorum"
    assert [log.round for log in history.rounds] == [0, 1]
    assert history.rounds[1].status.ok


def test_a_superlink_that_goes_away_and_comes_back_is_waited_for(loop, small, tmp_path):
    grid, config = loop(small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1)), deadline_s=5.0)

    def twist(device, asked, reply):
        if round_of(asked) == 0 and device == 3:
            grid.away = 5
        return reply

    grid.twist = twist
    serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    assert [log.lost for log in history.rounds] == [(), ()]


def test_a_killed_server_goes_on_where_its_last_round_ended_and_ends_the_same(loop, small, tmp_path):
    grid, config = loop(small(algorithm=Kfl(local_steps=2)))

    class PulledPlugError(BaseException):
        """Ends the server without any of its own clean-up."""

    trained = []

    def pull_the_plug(device, asked, reply):
        if round_of(asked) is not None:
            trained.append((device, round_of(asked)))
        if round_of(asked) == 1 and device == 1 and len(trained) < 7:
            raise PulledPlugError  # devices 0 and 1 have done round 1, the server has not
        return reply

    grid.twist = pull_the_plug
    with pytest.raises(PulledPlugError):
        serve(grid, config, tmp_path / "run")
    assert len(load_run(tmp_path / "run")[1].rounds) == 1
    serve(grid, config, tmp_path / "run")
    run(config.experiment, tmp_path / "simulated")
    for name, value in knowledge(tmp_path / "simulated").items():
        np.testing.assert_allclose(knowledge(tmp_path / "run")[name], value, atol=1e-5)
    _, history = load_run(tmp_path / "run")
    assert [log.round for log in history.rounds] == [0, 1, 2]
    introduced = [device for device, asked in grid.asked if round_of(asked) is None]
    assert sorted(introduced) == [0, 1, 2, 3], "each device says once what it has, whatever happens to the server"
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    serve(grid, config, tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before, "a finished run is left alone"


def test_two_servers_never_share_a_run_folder(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,)))
    with RunFolder(tmp_path / "run").locked(), pytest.raises(KflError, match="in use by another process"):
        serve(grid, config, tmp_path / "run")


def test_a_device_that_goes_and_comes_back_is_announced_once_each(loop, small, serve_fleet, caplog):
    grid, config = loop(small(rounds=5, scheduler=SCHEDULERS["all"]()))
    nodes = grid.get_nodes
    looks = []

    def some():
        looks.append(1)
        return [node for node in nodes() if node.node_id != 1002 or len(looks) != 4]

    grid.get_nodes = some
    with caplog.at_level("INFO", logger="kfl"):
        serve_fleet(grid, config)
    said = [r.getMessage() for r in caplog.records if getattr(r, "kfl_event", "") in ("device_gone", "device_back")]
    assert said == ["Device 2 is not there any more; rounds go on without it until it is back.", "Device 2 is back."]
    status = read_status(grid.folder / "run")
    assert (status.devices_seen, status.devices_there) == (4, 4)


def test_a_device_that_joins_late_takes_part_and_one_with_another_number_does_not(loop, small, tmp_path):
    plain = small(rounds=3, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]())
    grid, config = loop(plain)
    late = grid.online.pop(1003)
    impostor = type(late)(1002, "device-0")
    grid.online[1002] = impostor

    def twist(device, asked, reply):
        if round_of(asked) == 0:
            grid.online[1003] = late
        return reply

    grid.twist = twist
    serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    assert [log.devices for log in history.rounds] == [(0, 1), (0, 1, 3), (0, 1, 3)]
    fleet = json.loads((tmp_path / "run" / "fleet.json").read_text())
    assert "registered as device-0" in refusal_text(fleet["refused"]["1002"])
    assert sorted(fleet["devices"]) == ["0", "1", "3"]


def test_a_number_belongs_to_one_node_until_that_node_is_gone(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,)))
    target = RunFolder(tmp_path / "run")
    target.prepare(config.experiment)
    server = FleetServer(config, target, Courier(grid, 0.01, grid.clock))
    grid.node_config[1] = {"partition-id": 0}
    server.fleet.assemble()
    assert server.roster.members[0].node == 1000
    assert "another node" in refusal_text(server.roster.refused[1001][0])
    grid.online.pop(1000)
    server.roster.refused.clear()
    server.fleet.look()
    assert server.roster.members[0].node == 1001


def test_a_device_that_speaks_another_protocol_is_politely_refused(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1)))

    def twist(device, asked, reply):
        """Device 2 is of a later version, device 3 of the one before there were frames."""
        if device == 3:
            reply.content = RecordDict({"kfl": ConfigRecord({"protocol": 1, "kind": "profile", "device": 3})})
        return changed(reply, protocol=7) if device == 2 and round_of(asked) is None else reply

    grid.twist = twist
    serve(grid, config, tmp_path / "run")
    assert load_run(tmp_path / "run")[1].rounds[0].devices == (0, 1)
    fleet = json.loads((tmp_path / "run" / "fleet.json").read_text())
    assert "it speaks version 7" in refusal_text(fleet["refused"]["1002"])
    assert "it speaks version 1" in refusal_text(fleet["refused"]["1003"])


def test_measured_gains_decide_and_a_device_without_one_sits_out(loop, small, tmp_path):
    plain = small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1))
    (tmp_path / "gains.csv").write_text("round,device,gain\n0,0,1e-9\n0,1,1e-8\n0,3,1e-7\n")
    grid, config = loop(plain, channel="measured", gains=str(tmp_path / "gains.csv"))
    serve(grid, config, tmp_path / "run")
    log = load_run(tmp_path / "run")[1].rounds[0]
    assert log.devices == (0, 1, 3)
    assert log.share[0] > log.share[1] > log.share[2], "the weaker the channel, the larger the share"


def test_gains_and_hardware_that_devices_report_decide(loop, small, tmp_path):
    """Against the paper's formulas, written out here."""
    module = tmp_path / "reporting_device.py"
    module.write_text(
        "from dataclasses import replace\n"
        "from kfl_fleet.device import simulated as demo\n"
        "def device(partition, config):\n"
        "    own = dict(cpu_hz=1e9 + 1e8 * partition, flops_per_cycle=8.0, power_coefficient=2e-27, max_power_w=0.5)\n"
        "    gain = None if partition == 2 else 10.0 ** -(7 + partition)\n"
        "    return replace(demo.device(partition, config), **own, gain=gain, budget_j=4.0)\n"
    )
    plain = small(rounds=2, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]())
    grid, config = loop(plain, channel="reported")
    grid.node_config = {device: {"device": "reporting_device:device"} for device in range(4)}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    assert all(log.devices == (0, 1, 3) for log in history.rounds), "the channel of device 2 is unknown"
    for log in history.rounds:
        for place, device in enumerate(log.devices):
            flops = history.devices[device]["samples"] * history.devices[device]["parameters"]
            clock, share, power = 1e9 + 1e8 * device, log.share[place], log.power_w[place]
            assert log.compute_energy_j[place] == pytest.approx(2e-27 * flops * clock**2 / 8.0)
            band, gain = share * 1e6, 10.0 ** -(7 + device)
            noise = 10 ** ((-174 - 30) / 10)
            rate = band * np.log2(1 + power * gain / (band * noise))
            left_s = 1.0 - flops / (clock * 8.0)
            assert 640 * 32 / rate == pytest.approx(left_s, rel=1e-6), "the upload takes all the time that is left"
            assert power <= 0.5
    assert {device["budget_j"] for device in history.devices} == {4.0}


def test_devices_say_what_their_hardware_draws_and_get_their_clock_as_advice(loop, small, tmp_path):
    module = tmp_path / "frugal_device.py"
    module.write_text(
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "from kfl_fleet.device import simulated as demo\n"
        "def device(partition, config):\n"
        "    own = dict(cpu_hz=1e9, min_cpu_hz=1e8, circuit_power_w=0.2, tail_j=0.001 * partition)\n"
        f"    told = lambda advice: Path(r'{tmp_path}', f'{{partition}}.txt').write_text(str(advice.clock_hz))\n"
        "    return replace(demo.device(partition, config), **own, prepare=told)\n"
    )
    grid, config = loop(small(rounds=1, widths=(16,), algorithm=Kfl(local_steps=1), scheduler=SCHEDULERS["all"]()))
    grid.node_config = {device: {"device": "frugal_device:device"} for device in range(4)}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        serve(grid, config, tmp_path / "run")
    _, history = load_run(tmp_path / "run")
    (log,) = history.rounds
    assert log.devices == (0, 1, 2, 3) and log.tail_j == pytest.approx([0.0, 0.001, 0.002, 0.003], rel=1e-12)
    assert min(log.clock_hz) >= 1e8 * (1 - 1e-12) and max(log.clock_hz) < 1e9, "slowed down"
    assert [float((tmp_path / f"{device}.txt").read_text()) for device in range(4)] == list(log.clock_hz)
    assert [device["circuit_power_w"] for device in history.devices] == [0.2] * 4
    assert runpy.run_path("studies/recompute_run.py")["main"](tmp_path / "run") == 0


def test_fleet_settings_can_change_between_restarts_but_the_experiment_cannot(loop, small, tmp_path):
    grid, config = loop(small(rounds=1, widths=(16,)))
    serve(grid, config, tmp_path / "run")
    serve(grid, replace(config, fleet=replace(config.fleet, quorum=0.0)), tmp_path / "run")
    other = replace(config, experiment=replace(config.experiment, seed=5))
    with pytest.raises(KflError, match="seed"):
        serve(grid, other, tmp_path / "run")


def test_an_encoder_is_named_in_a_fleet(small):
    with pytest.raises(ConfigError, match=r"encoder is 'auto', but must be the encoder that devices name"):
        ServerConfig(small(algorithm=CommonKnowledge())).validate()
    ServerConfig(small(algorithm=CommonKnowledge(), encoder="scattering")).validate()
    x, y = np.random.default_rng(0).random((20, 1, 16, 16)).astype(np.float32), np.arange(20) % 2
    setup = DeviceSetup(lambda: linear((64,), 2), x, y, classes=2, encoder="scattering-64")
    setup.validate()
    assert setup.dataset().input_shape == (64,) and setup.dataset().whitened
    for wrong in ("auto", "scatering"):
        with pytest.raises(ConfigError, match="encoder is"):
            replace(setup, encoder=wrong).validate()
