"""Trained models from a run folder: as a ready module, or as files that load anywhere.

The weights are those a device predicts with: its own model, or what its algorithm makes of it and the server's.
Nothing here reads the dataset: the run folder says what shape its inputs have and how they are scaled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kfl._version import __version__
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.files import write_atomic, write_json
from kfl.data import Dataset, Partition
from kfl.engine import LocalData
from kfl.engine.autograd import AutogradEngine
from kfl.experiment import Experiment
from kfl.models import FleetModels, State, fleet_from_name
from kfl.runfolder import RunReader, as_safetensors, device_name, load_run
from kfl.simulation.logs import History


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run folder, open for reading models."""

    reader: RunReader
    experiment: Experiment
    history: History
    data: dict[str, Any]
    """What the run folder says about the dataset."""
    named_models: bool
    """False where the models were given as Python objects: then only their weights are known."""

    @staticmethod
    def open(path: Path) -> FinishedRun:
        """Read a run folder; RunFolderError for one that has no models to give."""
        experiment, history = load_run(path)
        if not history.summary:
            raise RunFolderError(f"The run in {path} is not finished; kfl resume continues it.")
        reason = experiment.algorithm.why_not_exported()
        if reason is not None:
            raise RunFolderError(f"The run in {path} has no models to export: {reason}.")
        reader = RunReader(path)
        if not reader.has_models:
            raise RunFolderError(
                f"The run in {path} did not keep its models; run it again without --no-models, into another folder: "
                f"kfl run --config {path / 'config.toml'}"
            )
        records = reader.devices("model", "rounds", "parameters", "classes", "accuracy", "test_samples")
        if [record["device"] for record in records] != list(range(experiment.devices)):
            raise RunFolderError(f"{path} is damaged: its devices.json is not about the {experiment.devices} devices.")
        data = reader.dataset("name", "input_shape", "classes", "scale", "mean", "std")
        return FinishedRun(reader, experiment, history, data, "models" not in reader.given_as_objects())

    def check_device(self, device: int) -> None:
        """Raise ConfigError for a device that the fleet does not have."""
        last = self.experiment.devices - 1
        if not 0 <= device <= last:
            raise ConfigError("device", device, f"from 0 to {last}: the run has {last + 1} devices")

    def models(self) -> FleetModels:
        """The architectures of the fleet, rebuilt from their names."""
        if not self.named_models:
            raise RunFolderError(
                f"The models of {self.reader.path} were given as Python objects, which a run folder cannot rebuild; "
                "export the weights and load them into your own module."
            )
        asked = self.experiment
        shape, classes = tuple(self.data["input_shape"]), int(self.data["classes"])
        fleet = fleet_from_name(asked.model, asked.widths, asked.devices, shape, classes, asked.seed)
        return asked.algorithm.device_models(fleet)

    def weights(self, device: int) -> State:
        """The weights a device predicts with at the end of the run."""
        self.check_device(device)
        state = self.reader.model(device)
        algorithm = self.experiment.algorithm
        if state is None:
            # Never trained, or keeps nothing between rounds: what it holds follows from its seed.
            state = algorithm.device_init(_bare_engine(self.models()), device, self.experiment.seed)
            if state and self.history.devices[device]["rounds"] > 0:
                raise self.reader.no_model(device)
        try:
            server = {name: torch.from_numpy(value) for name, value in self.reader.server().items()}
        except TypeError as problem:  # of a type that PyTorch does not have
            raise RunFolderError(f"The server's arrays in {self.reader.path} are damaged ({problem}).") from problem
        return algorithm.predictor(server, state)

    def describe(self, device: int) -> dict[str, Any]:
        """What is needed to load and use a device's weights, as plain values."""
        record = self.history.devices[device]
        about: dict[str, Any] = {"kfl": __version__, "device": device, "model": record["model"]}
        if self.named_models:
            models = self.models()
            name, _, width = models.names[int(models.architecture[device])].rpartition("-")
            about["model"], about["width"] = name, int(width)
            about["features"] = models.features
            if models.added is not None:
                about["small"] = dict(models.added)
        return {
            **about,
            "parameters": record["parameters"],
            "input_shape": self.data["input_shape"],
            "classes": self.data["classes"],
            "inputs": {
                "formula": "(x * scale - mean) / std, mean and std per channel; null: not applied",
                **{name: self.data[name] for name in ("scale", "mean", "std")},
            },
            "accuracy": record["accuracy"],
            "test_samples": record["test_samples"],
            "trained_on_classes": record["classes"],
            "rounds": record["rounds"],
            "algorithm": self.experiment.algorithm.name,
            "dataset": self.data["name"],
            "seed": self.experiment.seed,
        }


def load_model(run_folder: str | Path, device: int) -> nn.Module:
    """The model of one device at the end of a run, ready to predict (in evaluation mode).

    Works for networks that have a name: those of the zoo and package.module:function. No pickled code is executed; a
    network of your own is built by calling your function.

    >>> import kfl, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> _ = kfl.run(kfl.Experiment(devices=20, rounds=1, widths=(16,)), folder)
    >>> load_model(folder, 3)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    run = FinishedRun.open(Path(run_folder))
    run.check_device(device)
    models = run.models()
    with torch.random.fork_rng(devices=[]):
        module = models.builders[int(models.architecture[device])]()
    module.load_state_dict(run.weights(device))
    return module.eval()


def export_models(run_folder: str | Path, devices: Sequence[int], out: str | Path) -> list[Path]:
    """Write the models of chosen devices as safetensors, each with a JSON next to it, and a `load.py` that reads them.

    Returns the safetensors files.
    """
    run, target = FinishedRun.open(Path(run_folder)), Path(out)
    for device in devices:
        run.check_device(device)
    written = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for device in devices:
            about = run.describe(device)
            path = target / f"{device_name(device)}.safetensors"
            write_atomic(path, as_safetensors(run.weights(device), {"kfl": json.dumps(about)}))
            write_json(path.with_suffix(".json"), about)
            written.append(path)
        if run.named_models:
            write_atomic(target / "load.py", LOADER.encode())
    except OSError as problem:
        reason = problem.strerror or problem
        raise RunFolderError(f"{target} cannot be written ({reason}); choose another with --out.") from problem
    return written


LOADER = '''"""Load a model that `kfl export` wrote: from load import load; model, about = load("device-00000")."""

import importlib
import json
from pathlib import Path

from safetensors.torch import load_file


def load(name, folder=Path(__file__).parent):
    """The module, ready to predict, and what is known about it; scale inputs as about["inputs"] says."""
    about = json.loads((Path(folder) / f"{name}.json").read_text())
    module, _, function = about["model"].rpartition(":")
    build = getattr(importlib.import_module(module or "kfl.models"), function)
    shape, classes = tuple(about["input_shape"]), about["classes"]
    model = build(input_shape=shape, classes=classes, width=about["width"])
    if "small" in about:  # a small network stands next to the device's own
        from kfl.algorithms import small_network

        model = small_network.beside(
            lambda own=model: own, small_network.SmallNetwork(**about["small"]), about["features"], shape, classes
        )
    model.load_state_dict(load_file(Path(folder) / f"{name}.safetensors"))
    return model.eval(), about
'''


def _bare_engine(models: FleetModels) -> AutogradEngine:
    """Return an engine that can start models without data: one sample of no device stands for the dataset."""
    classes = models.profiles[0].classes
    sample, label = np.zeros((1, *models.input_shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    nobody = np.zeros((0, classes), dtype=np.int64)
    nothing = Dataset("none", sample, label, sample, label, classes)
    return AutogradEngine(LocalData(nothing, Partition((), (), nobody, nobody)), models)
