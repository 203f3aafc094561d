"""Secure sums in a fleet within one process, with real messages: the plain result, drop-outs, and what leaves a device.

The workers live as long as the fleet, as those of `kfl deploy device` do.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kfl.algorithms import ALGORITHMS, Algorithm, FedAvg, Kfl, SharedStem, Upload
from kfl.algorithms.sums import summation_of
from kfl.core.errors import ConfigError
from kfl.core.refusals import describe, stored_refusal
from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment, load_run
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet._flower.names import Message
from kfl_fleet._flower.records import from_record, to_record
from kfl_fleet.device.memory import Memory
from kfl_fleet.device.worker import Worker, make_worker
from kfl_fleet.messages.frames import RawArray, to_tensors, unpack
from kfl_fleet.secure import pack_devices
from tests.fleet.messages import with_array

DEVICES = 6
Sent = list[tuple[int, dict[str, Any], dict[str, RawArray]]]


def experiment(algorithm: Algorithm, **changes: Any) -> Experiment:
    more = {"model": "cnn", "widths": (8, 16)} if isinstance(algorithm, SharedStem) else {"widths": (32,)}
    every = {"devices": DEVICES, "rounds": 2, "scheduler": SCHEDULERS["all"](), "algorithm": algorithm, "radio": None}
    return Experiment(**{**every, **more, **changes})


def keep_warm(grid: Any) -> tuple[dict[int, Worker], Sent]:
    """Let each device keep its worker, and note everything that a worker sends."""
    workers: dict[int, Worker] = {}
    sent: Sent = []

    def answer(message: Message, context: Any) -> Message:
        device = context.node_config["partition-id"]
        if device not in workers:
            workers[device] = make_worker(context.node_config, {})
        parts = workers[device].open(from_record(message.content))
        sent.append((device, *unpack(parts)))
        return Message(to_record(parts), reply_to=message)

    grid.answer = answer
    return workers, sent


def table_of(message: Message) -> dict[str, Any]:
    return unpack(from_record(message.content))[0]


def server_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "server.npz") as found:
        return {name: found[name] for name in found.files}


SECURE = {"secure_sums": True, "secure_deadline_s": 0.2, "quorum": 0.0}


@pytest.mark.parametrize(
    ("algorithm", "settings", "tolerance"),
    [
        (Kfl(local_steps=2), {}, 1e-5),
        (Kfl(local_steps=2), {"secure_bits": 64}, 1e-6),
        (Kfl(local_steps=2), {"secure_neighbours": 4, "secure_threshold": 0.5}, 1e-5),
        # Two rounds of convolutions: training amplifies what the grid of 32 bits rounded off in the first sum. A mask
        # that is left over, or a device too many, would be an error of 1e-2 and more.
        (SharedStem(local_steps=2), {}, 5e-5),
        (SharedStem(local_steps=2, pull="knowledge"), {"secure_bits": 64}, 1e-6),
        (FedAvg(local_steps=2), {}, 1e-5),
    ],
    ids=["kfl", "kfl-64", "kfl-neighbors", "shared-stem", "stem-and-knowledge-64", "fedavg"],
)
def test_a_third_of_the_devices_drops_out_and_the_rest_add_up_to_the_plain_result(
    algorithm: Algorithm,
    settings: dict[str, Any],
    tolerance: float,
    loop: Callable[..., Any],
    serve_fleet: Callable[..., Path],
) -> None:
    """Devices 1 and 4 vanish in round 1 after they masked with all others: their masks are in everyone's uploads."""
    found = {}
    for name, more in (("plain", {}), ("secure", {**SECURE, **settings})):
        grid, config = loop(experiment(algorithm), **more)
        grid.folder = grid.folder.parent / name
        grid.folder.mkdir()
        (grid.folder / "device.toml").write_text(f'experiment = "{grid.folder.parent / "fleet" / "server.toml"}"\n')
        keep_warm(grid)

        def vanish(device: int, asked: Message, reply: Message, lost: str = "mask" if more else "train") -> Any:
            table = table_of(asked)
            step = table.get("step") or ("train" if table.get("kind") == "round" else "")
            return None if (table.get("round"), step) == (1, lost) and device in (1, 4) else reply

        grid.twist = vanish
        found[name] = serve_fleet(grid, config)
    _, history = load_run(found["secure"])
    assert [(entry.lost, entry.status.ok) for entry in history.rounds] == [((), True), ((1, 4), True)]
    plain, secure = server_of(found["plain"]), server_of(found["secure"])
    assert set(plain) == set(secure)
    # A value in the middle between two codes of a few bits falls to either side when what came down differs by a
    # rounding error of the sum: it may be off by one step of its grid. Nothing else may.
    codes = 2 if isinstance(algorithm, SharedStem) else 0
    for name, value in plain.items():
        off = np.abs(secure[name].astype(float) - value) / max(1.0, float(np.abs(value).max()))
        assert (off > tolerance).sum() <= codes and off.max() < (5e-5 if codes else tolerance), name
    texts = [describe(*stored_refusal(fault)) for fault in history.rounds[1].faults]
    assert texts == ["in the step mask of the secure sum, no answer in 0.2 s"] * 2


@pytest.mark.parametrize("step", ["share", "mask", "reveal"])
def test_below_the_threshold_a_round_changes_nothing_and_says_so(
    step: str, loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    keep_warm(grid)
    grid.twist = lambda device, asked, reply: None if table_of(asked).get("step") == step and device < 3 else reply
    folder = serve_fleet(grid, config)
    _, history = load_run(folder)
    assert str(history.rounds[0].status).startswith("No secure sum: Only 3 of 6 devices ")
    assert str(history.rounds[0].status).endswith(" and 4 are needed: no change.")
    assert not server_of(folder)["known"].any()


@pytest.mark.parametrize("step", ["advertise", "reveal"])
def test_the_one_at_fault_is_named_and_the_others_are_summed(
    step: str, loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    """Device 2 spells its key in another way, which all others would refuse, or flips a bit of a share."""
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    keep_warm(grid)

    def lie(device: int, asked: Message, reply: Message) -> Message:
        table, name = table_of(asked), "keys" if step == "advertise" else "shares"
        if device != 2 or table.get("kind") == "profile" or table.get("step", "advertise") != step:
            return reply
        found = unpack(from_record(reply.content))[1][name].array()
        found[-1 if step == "advertise" else 24] ^= 0x80 if step == "advertise" else 1
        return with_array(reply, name, found)

    grid.twist = lie
    _, history = load_run(serve_fleet(grid, config))
    assert history.rounds[0].status.ok
    (blamed,) = (*history.rounds[0].rejected, *history.rounds[0].faults)
    said = describe(*stored_refusal(blamed))
    assert blamed["device"] == 2
    assert ("not in the form that a device gives it" if step == "advertise" else "Its share of the seed") in said


def test_a_device_that_starts_again_in_mid_round_has_dropped_out(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    workers, _ = keep_warm(grid)

    def restart(device: int, asked: Message, reply: Message) -> Message:
        if table_of(asked).get("step") == "share" and device == 2:
            workers.pop(2)  # its secrets are gone with its memory
        return reply

    grid.twist = restart
    _, history = load_run(serve_fleet(grid, config))
    (refused,) = history.rounds[0].rejected
    assert (refused["device"], history.rounds[0].status.ok) == (2, True)
    assert "a secure sum that this device has no part in" in describe(*stored_refusal(refused))


def test_a_message_that_comes_twice_has_one_answer_and_another_one_none(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    """A courier that does not know whether its messages arrived sends them again."""
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    workers, sent = keep_warm(grid)
    once = grid.answer

    def twice(message: Message, context: Any) -> Message:
        once(message, context)
        return once(message, context)

    grid.answer = twice
    _, history = load_run(serve_fleet(grid, config))
    assert history.rounds[0].status.ok and not history.rounds[0].rejected
    for step in ("share", "mask", "reveal"):
        own = [(values, arrays) for device, values, arrays in sent if device == 2 and values.get("step") == step]
        assert len(own) == 2 and own[0] == own[1]
    asked = [unpack(from_record(m.content)) for device, m in grid.asked if device == 2]
    values, arrays = next((values, raw) for values, raw in asked if values.get("step") == "reveal")
    fewer = {"survivors": torch.from_numpy(np.frombuffer(pack_devices((0, 1, 2, 3)), np.uint8).copy())}
    assert arrays["survivors"].data != bytes(fewer["survivors"].numpy())
    refused, nothing = workers[2].answer(values, fewer)
    assert "has revealed in this sum" in refused["reason"] and not nothing


def test_no_upload_goes_into_two_sums_not_even_after_a_restart(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    """A server that plays a round again, with other devices left, would learn the difference of two sums."""
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    workers, _ = keep_warm(grid)
    serve_fleet(grid, config)
    asked = next(m for device, m in grid.asked if device == 2 and table_of(m).get("kind") == "round")
    values, raw = unpack(from_record(asked.content))
    again, arrays = {**values, "session": "ab" * 16}, to_tensors(raw)
    same, keys = workers[2].answer(values, arrays)  # a message that came late: what was said before
    assert same["status"] == "ok" and list(keys) == ["keys"]
    for worker in (workers[2], Worker(2, workers[2].setup, workers[2].folder, workers[2].meter)):
        refused, nothing = worker.answer(again, arrays)
        assert refused["status"] == "refused" and not nothing
        assert "round 0 is in a sum already" in refused["reason"]


def test_steps_that_make_no_sense_are_refused_and_tell_nothing(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    workers, _ = keep_warm(grid)
    grid.twist = lambda device, asked, reply: None if table_of(asked).get("step") == "share" else reply
    serve_fleet(grid, config)  # which ends before anything is masked
    asked = [unpack(from_record(m.content)) for device, m in grid.asked if device == 2]
    values, raw = next((values, raw) for values, raw in asked if values.get("step") == "share")
    good = {**values, "step": "mask", "devices": 6, "bits": 32, "largest_weight": 1024.0, "range": 64.0}
    junk = torch.arange(40, dtype=torch.uint8)
    for twisted, arrays in (
        ({**values, "step": "reveal"}, {"survivors": junk}),
        ({**values, "step": "open"}, {}),
        ({**values, "step": None}, to_tensors(raw)),
        ({**values, "session": "ab" * 16}, to_tensors(raw)),
        ({**values, "session": 7}, to_tensors(raw)),
        ({**values, "threshold": 2}, to_tensors(raw)),
        (good, {}),
        (good, {"boxes": junk}),
        (good, {"boxes": junk.double()}),
        ({**good, "bits": 33}, {"boxes": torch.zeros(4, dtype=torch.uint8)}),
        ({**good, "range": float("nan")}, {"boxes": torch.zeros(4, dtype=torch.uint8)}),
        ({**good, "devices": -1}, {"boxes": torch.zeros(4, dtype=torch.uint8)}),
        (good, {"boxes": torch.zeros(4, dtype=torch.uint8)}),  # no other device: its own mask would be all there is
    ):
        answer, sent = workers[2].answer(twisted, arrays)
        assert answer["status"] == "refused" and answer["reason"] and not sent, twisted


def test_clipped_values_are_counted_in_the_sum_and_told(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE, secure_range=0.01)
    keep_warm(grid)
    folder = serve_fleet(grid, config)
    (facts,) = (json.loads(line) for line in (folder / "fleet.jsonl").read_text().splitlines())
    assert facts["secure"]["clipped"] > 0
    assert "of their values, which biases the result: fleet.secure_range is 0.01, and should be larger" in caplog.text
    assert np.isfinite(server_of(folder)["knowledge"]).all()


# ── Nothing but masks ────────────────────────────────────────────────────────


def exposed(sent: Sent, uploads: dict[int, dict[str, torch.Tensor]], terms: dict[int, np.ndarray]) -> list[str]:
    """Where what a device sent tells of its upload: raw bytes of it, numbers in step with it, or numbers not even."""
    found = []
    for device, values, arrays in sent:
        if values.get("kind") not in ("round", "sum"):
            continue
        data = b"".join(raw.data for raw in arrays.values())
        for name, tensor in uploads[device].items():
            plain = tensor.numpy()
            if plain.size > 3 and any(plain.astype(kind).tobytes() in data for kind in ("<f4", "<f8", "<i4", "<i8")):
                found.append(f"device {device} sent its {name}")
        for name, raw in arrays.items():
            numbers = raw.array()
            if name not in ("keys", "boxes", "shares", "masked"):
                found.append(f"device {device} sent {name}")
            if name == "masked":
                own = terms[device]
                size = len(own)
                low = numbers[:size].astype(np.float64)
                step = abs(float(np.corrcoef(low, own)[0, 1]))
                if step > 6 / math.sqrt(size):  # any affine or rounded version is in step with the values
                    found.append(f"what device {device} sent follows its values: correlation {step:.2f}")
                seen = np.bincount(numbers.view(np.uint8), minlength=256)
                expected = numbers.nbytes / 256
                if not 120 < float(((seen - expected) ** 2 / expected).sum()) < 450:
                    found.append(f"what device {device} sent is not spread evenly")
    return found


def played(loop: Callable[..., Any], serve_fleet: Callable[..., Path], algorithm: Algorithm) -> list[str]:
    """One round with secure sums on: what of it is exposed."""
    grid, config = loop(experiment(algorithm, rounds=1), **SECURE)
    workers, sent = keep_warm(grid)
    serve_fleet(grid, config)
    summation = summation_of(algorithm)
    run = next(path.name for path in (grid.folder / "devices").iterdir())
    asked = {device: message for device, message in grid.asked if table_of(message).get("kind") == "round"}
    uploads, terms = {}, {}
    for device, worker in workers.items():
        kept = Memory(grid.folder / "devices", run, device).load()
        uploads[device] = dict(kept.upload)
        raw = unpack(from_record(asked[device].content))[1]
        message = {name: torch.from_numpy(array.array()) for name, array in raw.items()}
        own = summation.terms(Upload(device, kept.upload), message, worker.engine)
        terms[device] = np.concatenate([value.numpy().ravel() for value in own.values.values()])
        assert terms[device].std() > 0
    steps = [values.get("step") for _, values, _ in sent if values.get("kind") == "sum"]
    assert {step: steps.count(step) for step in steps} == {"share": DEVICES, "mask": DEVICES, "reveal": DEVICES}
    return exposed(sent, uploads, terms)


@pytest.mark.parametrize("algorithm", [Kfl(local_steps=2), SharedStem(local_steps=2)], ids=["kfl", "shared-stem"])
def test_no_upload_leaves_a_device_without_masks(
    algorithm: Algorithm, loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    assert played(loop, serve_fleet, algorithm) == []


def test_that_test_finds_a_device_without_masks(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a generator that gives zeros, on both sides: sums are right, and nothing is hidden."""

    def zeros(key: bytes, length: int, bits: int) -> np.ndarray:
        return np.zeros(length, dtype=f"<u{bits // 8}")

    monkeypatch.setattr("kfl_fleet.secure.device.mask", zeros)
    monkeypatch.setattr("kfl_fleet.secure.server.mask", zeros)
    found = played(loop, serve_fleet, Kfl(local_steps=2))
    assert any("follows its values" in text for text in found)
    assert any("not spread evenly" in text for text in found)


def test_that_test_finds_a_device_that_sends_its_upload_too(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Worker._mask

    def leaking(self: Worker, values: Any, arrays: Any, algorithm: Algorithm, kept: Any) -> Any:
        return {**honest(self, values, arrays, algorithm, kept), **kept.upload}

    monkeypatch.setattr(Worker, "_mask", leaking)
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    _, sent = keep_warm(grid)
    _, history = load_run(serve_fleet(grid, config))
    run = next(path.name for path in (grid.folder / "devices").iterdir())
    uploads = {d: dict(Memory(grid.folder / "devices", run, d).load().upload) for d in range(DEVICES)}
    found = exposed(sent, uploads, {})
    assert {f"device {d} sent its means" for d in range(DEVICES)} <= set(found)
    assert len(history.rounds[0].rejected) == DEVICES  # and the server does not take what it did not ask for


def test_devices_are_charged_for_what_they_send(loop: Callable[..., Any], serve_fleet: Callable[..., Path]) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    _, sent = keep_warm(grid)
    _, history = load_run(serve_fleet(grid, config))
    really = sum(len(raw.data) for _, _, arrays in sent for raw in arrays.values())
    assert history.rounds[0].bits_up == 8 * really


def test_profiles_do_not_say_which_classes_a_device_holds(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), **SECURE)
    _, sent = keep_warm(grid)
    serve_fleet(grid, config)
    profiles = [values for _, values, _ in sent if values.get("kind") == "profile"]
    assert len(profiles) == DEVICES
    assert not any("samples_per_class" in values for values in profiles)


def test_a_device_that_sends_only_masked_uploads_refuses_a_plain_round(
    loop: Callable[..., Any], serve_fleet: Callable[..., Path]
) -> None:
    grid, config = loop(experiment(Kfl(local_steps=1), rounds=1), quorum=0.0)
    workers, sent = keep_warm(grid)
    honest = grid.answer

    def guarded(message: Message, context: Any) -> Message:
        if context.node_config["partition-id"] == 3 and 3 in workers:
            object.__setattr__(workers[3].setup, "masked_only", True)
        return honest(message, context)

    grid.answer = guarded
    _, history = load_run(serve_fleet(grid, config))
    (refused,) = history.rounds[0].rejected
    assert refused["device"] == 3
    assert "sends nothing that is not masked" in describe(*stored_refusal(refused))
    assert all(not arrays for device, _, arrays in sent if device == 3)


# ── Refusals ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (Kfl(aggregation="median"), "algorithm.aggregation = 'median' compares what single devices send"),
        (Kfl(aggregation="trimmed"), "algorithm.aggregation = 'trimmed' compares what single devices send"),
        (SharedStem(aggregation="clip"), "algorithm.aggregation = 'clip' compares what single devices send"),
        (ALGORITHMS["fedtgp"](), "the server of 'fedtgp' looks at what single devices send"),
        (ALGORITHMS["fedgh"](), "the server of 'fedgh' looks at what single devices send"),
        (ALGORITHMS["local"](), "devices send nothing in 'local'"),
    ],
)
def test_what_needs_single_uploads_is_refused_in_one_sentence(algorithm: Algorithm, why: str) -> None:
    config = ServerConfig(Experiment(devices=6, algorithm=algorithm), FleetSettings(secure_sums=True))
    with pytest.raises(ConfigError) as problem:
        config.validate()
    assert str(problem.value) == f"fleet.secure_sums is True, but must be false here, since {why}."


def test_the_command_line_says_so_too(tmp_path: Path) -> None:
    algorithm = Kfl(aggregation="median")
    config = ServerConfig(Experiment(devices=6, rounds=1, algorithm=algorithm), FleetSettings(secure_sums=True))
    (tmp_path / "server.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "kfl.cli.main", "deploy", "up", "--config", "server.toml", "--out", "fleet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    why = "algorithm.aggregation = 'median' compares what single devices send"
    assert done.returncode == 2
    assert done.stderr == f"kfl: fleet.secure_sums is True, but must be false here, since {why}.\n"
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"secure_threshold": 0.0}, "fleet.secure_threshold is 0.0, but must be above 0 and at most 1."),
        ({"secure_bits": 16}, "fleet.secure_bits is 16, but must be 32 or 64."),
        ({"secure_range": -1.0}, "fleet.secure_range is -1.0, but must be from 1e-09 to 1e+09."),
        ({"secure_neighbours": 5}, "fleet.secure_neighbours is 5, but must be an even number of at least 4, or none"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as problem:
        FleetSettings(secure_sums=True, **settings).validate()
    assert str(problem.value).startswith(sentence)
