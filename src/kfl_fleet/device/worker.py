"""A device's part of a round, without Flower: a table and arrays in, a table and arrays out.

A worker lives as long as its device, and keeps data and engine between messages; the model it reads from its disk.

The device trains by the very `Algorithm.local_update` the simulator calls, as a cohort of one: the engine holds one
device's data under the device's own number, so every draw by name (first weights, mini-batches, noise) is the same as
in a simulation of the whole fleet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.core.errors import ConfigError, ModelError
from kfl.core.parse import parse_json, read_toml
from kfl_fleet.device.memory import Memory, StoredState
from kfl_fleet.device.meters import Meter, make_meter
from kfl_fleet.device.secure_upload import MaskedUpload
from kfl_fleet.messages.frames import pack, to_tensors, unpack
from kfl_fleet.messages.profile import MOST_SAMPLES, Profile, model_sizes
from kfl_fleet.messages.protocol import (
    PROTOCOL_VERSION,
    Parts,
    RefusedError,
    Values,
    check_version,
    number,
    refusal,
    whole,
)
from kfl_fleet.setup import Advice, DeviceSetup, make_setup

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms import Algorithm
    from kfl.data import LocalData
    from kfl.models import FleetModels, State

Arrays = Mapping[str, "Tensor"]


@dataclass
class Worker:
    """One device: what it has, where it keeps it, and how it measures."""

    device: int
    setup: DeviceSetup
    folder: Path
    meter: Meter

    def __post_init__(self) -> None:
        self._data, self._models = one_device(self.setup, self.device)
        self.model_name = self._models.names[0]
        self._known: tuple[str, Algorithm] | None = None
        self._masked: MaskedUpload | None = None
        """The upload of the last round, where it goes into a secure sum; in memory alone, secrets and all."""

    def _asked(self, values: Mapping[str, Any]) -> Algorithm:
        """The algorithm of a message. From now on the engine trains what it makes of the device's network."""
        from kfl.engine.plan import make_engine

        text = str(values.get("algorithm"))
        if self._known is None or self._known[0] != text:
            algorithm = _algorithm(text)
            self.engine = make_engine(self._data, algorithm.device_models(self._models))
            self._known = text, algorithm
        return self._known[1]

    def open(self, parts: Parts) -> Parts:
        """Answer one message as it travels. What cannot be read is refused, too."""
        try:
            values, raw = unpack(parts)
            check_version(values)  # before any work: the rest of the message may mean something else
            arrays = to_tensors(raw)
        except RefusedError as problem:
            return pack(refusal(problem), {})
        return pack(*self.answer(values, arrays))

    def answer(self, values: Mapping[str, Any], arrays: Arrays) -> tuple[Values, Arrays]:
        """Answer one message. What cannot be answered is refused in a sentence, which is an answer too."""
        try:
            check_version(values)
            kind = values.get("kind")
            if kind == "profile":
                return self._profile(values).values(), {}
            if kind == "round":
                return self._round(values, arrays)
            if kind == "sum":
                return self._sum_step(values, arrays)
            raise RefusedError("unknown_kind")
        except (RefusedError, ModelError) as problem:  # such as layers that this device's network does not have
            return self._answer("refused", whole_or(values, "round"), reason=str(problem)), {}

    def _profile(self, values: Mapping[str, Any]) -> Profile:
        algorithm, seed = self._asked(values), whole(values, "seed", -MOST_SAMPLES, MOST_SAMPLES)
        memory = Memory(self.folder, str(values.get("run")), self.device)
        with memory.locked(number(values, "deadline_s")):
            kept = memory.load()
            if kept is None:  # kept from now on: a module may start with other weights every time it is built
                state = algorithm.device_init(self.engine, self.device, seed)
                memory.save(StoredState(-1, state, {}, {}))
            else:
                state = kept.state
        return self.describe(algorithm, self._correct(algorithm, {}, state), secure=is_secure(values))

    def describe(self, algorithm: Algorithm, correct: int, *, secure: bool = False) -> Profile:
        """What this device has. Counts per class are not told where the algorithm or a secure sum hides them."""
        profile, setup = self.engine.profile(self.device), self.setup
        hidden = secure or bool(getattr(algorithm, "noise_counts", False))
        data = self._data.dataset
        counts = np.bincount(data.train_y, minlength=data.classes)
        return Profile(
            device=self.device,
            **model_sizes(profile.model),
            input_shape=data.input_shape,
            samples=profile.samples,
            samples_per_class=() if hidden else tuple(int(count) for count in counts),
            test_samples=self._data.size(self.device, "test"),
            correct=correct,
            model=self.model_name,
            meter=self.meter.name,
            **setup.hardware(),
        )

    def _round(self, values: Mapping[str, Any], arrays: Arrays) -> tuple[Values, Arrays]:
        advice, algorithm = _advice(values), self._asked(values)
        if self.setup.masked_only and not is_secure(values):
            raise RefusedError("not_masked")
        memory = Memory(self.folder, str(values.get("run")), self.device)
        with memory.locked(advice.deadline_s):
            kept = memory.load()
            if kept is not None and kept.round > advice.round:
                raise RefusedError("round_done", round=kept.round)
            if kept is None or kept.round < advice.round:
                if memory.began >= advice.round:
                    raise RefusedError("round_lost", round=memory.began)
                memory.mark_began(advice.round)
                if self.setup.prepare is not None:
                    self.setup.prepare(advice)
                kept = self._train(values, arrays, advice, algorithm, kept)
                memory.save(kept)
        if self.setup.apply is not None:
            self.setup.apply(advice)
        gain = {} if self.setup.gain is None else {"gain": self.setup.gain}
        reply: Values = {**kept.answer, **gain}
        if not is_secure(values):
            return reply, kept.upload
        return reply, self._mask(values, arrays, algorithm, kept)

    def _mask(self, values: Mapping[str, Any], arrays: Arrays, algorithm: Algorithm, kept: StoredState) -> Arrays:
        """What goes out in place of the upload of a secure sum: keys; nothing where the training diverged."""
        from kfl.algorithms import Upload
        from kfl.algorithms.sums import summation_of, why_not_summed

        summation = summation_of(algorithm)
        if summation is None:
            raise RefusedError("no_sum", text=f"{why_not_summed(algorithm)}.")
        if not kept.upload:
            return {}
        if self._masked is not None and values.get("session") == self._masked.session.hex():
            return {"keys": self._masked.keys()}  # the message came twice
        self._masked = None
        if Memory(self.folder, str(values.get("run")), self.device).summed >= kept.round:
            raise RefusedError("sum_done", round=kept.round)
        terms = summation.terms(Upload(self.device, kept.upload), self.engine.place(arrays), self.engine)
        self._masked = MaskedUpload(values.get("session"), kept.round, self.device, terms)
        return {"keys": self._masked.keys()}

    def _sum_step(self, values: Mapping[str, Any], arrays: Arrays) -> tuple[Values, Arrays]:
        upload = self._masked
        if upload is None or values.get("session") != upload.session.hex():
            raise RefusedError("other_sum")
        if values.get("step") == "reveal":
            Memory(self.folder, str(values.get("run")), self.device).mark_summed(upload.round)
        return upload.answer(values, arrays)

    def _train(
        self, values: Mapping[str, Any], arrays: Arrays, advice: Advice, algorithm: Algorithm, kept: StoredState | None
    ) -> StoredState:
        """Train once, and make the answer. A diverged model is not kept, nor is its upload sent."""
        from kfl.engine import SecretKey
        from kfl.simulation.fleet import finite

        seed, engine = whole(values, "seed", -MOST_SAMPLES, MOST_SAMPLES), self.engine
        before = algorithm.device_init(engine, self.device, seed) if kept is None else kept.state
        began = time.perf_counter()
        self.meter.start()
        message = engine.place(arrays)
        after, uploads = algorithm.local_update(message, [self.device], [before], engine, SecretKey(seed, advice.round))
        compute_j = self.meter.stop(advice.compute_energy_j)
        fine = finite(after)[0]
        state = after[0] if fine else before
        correct = self._correct(algorithm, arrays, state)
        answer = self._answer(
            "ok" if fine else "diverged",
            advice.round,
            compute_energy_j=float(compute_j),
            upload_energy_j=float(advice.upload_energy_j) if fine else 0.0,
            correct=correct,
            digest=self.describe(algorithm, correct, secure=is_secure(values)).digest(),
            work_s=time.perf_counter() - began,
        )
        return StoredState(advice.round, state, uploads[0].arrays if fine and uploads else {}, answer)

    def _correct(self, algorithm: Algorithm, server: Arrays, state: State) -> int:
        """Right test predictions. Where a device predicts with a model of the server's, with the last it was sent."""
        if not algorithm.predicts_alone and not server:
            return 0
        return algorithm.correct(dict(server), [self.device], [state], self.engine)[0]

    def _answer(self, status: str, round_index: int, **more: Any) -> Values:
        return {
            "protocol": PROTOCOL_VERSION,
            "kind": "round",
            "status": status,
            "round": round_index,
            "device": self.device,
            **more,
        }


def make_worker(node: Mapping[str, Any], app: Mapping[str, Any]) -> Worker:
    """The device that its node's configuration and the app's describe.

    The node says partition-id, and may say state, config, device and meter; the app says the device function where the
    node does not.
    """
    partition = whole_or(node, "partition-id")
    if partition < 0:
        raise ConfigError("partition-id", node.get("partition-id"), "the device's number, from 0")
    address = str(node.get("device") or app.get("device") or "")
    file = node.get("config")
    config = read_toml(Path(str(file))) if file else {}
    setup = make_setup(address, partition, config)
    folder = Path(str(node.get("state") or Path.home() / ".kfl" / "fleet"))
    return Worker(partition, setup, folder, make_meter(str(node.get("meter") or "formula")))


def one_device(setup: DeviceSetup, device: int) -> tuple[LocalData, FleetModels]:
    """One device's data and its own network, under that device's number."""
    from kfl.data import LocalData, Partition

    data = setup.dataset()
    none = np.zeros(0, dtype=np.int64)
    tests = none if setup.has_no_test else np.arange(len(data.test_y))
    counts = np.zeros((device + 1, data.classes), dtype=np.int64)
    counts[device] = np.bincount(data.train_y, minlength=data.classes)
    split = Partition(
        train=(*[none] * device, np.arange(len(data.train_y))),
        test=(*[none] * device, tests),
        train_counts=counts,
        test_counts=np.zeros_like(counts),
    )
    return LocalData(data, split), one_device_models(setup, device, data.input_shape, data.classes)


def one_device_models(setup: DeviceSetup, device: int, input_shape: tuple[int, ...], classes: int) -> FleetModels:
    """The device's network as an engine expects it. A module keeps its weights; a function's are drawn by name."""
    from torch import nn

    from kfl.models import FleetModels, inspect_model

    given = setup.model
    module = given if isinstance(given, nn.Module) else given()
    profile = inspect_model(module, input_shape, classes, f"The model of device {device}")
    start = None
    if isinstance(given, nn.Module):
        start = {name: value.detach().clone() for name, value in given.state_dict().items()}
    return FleetModels(
        builders=(lambda: module,) if isinstance(given, nn.Module) else (given,),
        architecture=np.zeros(device + 1, dtype=np.int64),
        profiles=(profile,),
        starts=(start,),
        names=(setup.model_name or type(module).__name__,),
    )


def is_secure(values: Mapping[str, Any]) -> bool:
    """Whether the server of a message adds uploads without seeing them."""
    return values.get("secure") is True


def whole_or(values: Mapping[str, Any], name: str, otherwise: int = -1) -> int:
    """An integer of a message that may be no message of ours at all."""
    found = values.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else otherwise


def _algorithm(text: str) -> Algorithm:
    from kfl.experiment import Experiment

    try:
        algorithm = Experiment.from_table({"algorithm": parse_json(text)}).algorithm
        algorithm.validate()
    except (ValueError, ConfigError) as problem:
        raise RefusedError("unknown_algorithm", text=str(problem)) from problem
    return algorithm


def _advice(values: Mapping[str, Any]) -> Advice:
    values = {"clock_hz": 0.0, **values}  # a server of an earlier version does not say it
    numbers = {one.name: number(values, one.name) for one in fields(Advice) if one.name != "round"}
    return Advice(round=whole(values, "round", 0, MOST_SAMPLES), **numbers)
