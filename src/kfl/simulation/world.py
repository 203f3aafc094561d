"""The world of a simulated run: everything that is fixed before the first round."""

from __future__ import annotations

import importlib
import inspect
import logging
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data import Dataset, Partition, dataset_path, load_dataset
from kfl.encoders.names import AUTO, NONE, encoder_for
from kfl.engine import Engine, LocalData
from kfl.engine.plan import Plan, make_engine
from kfl.experiment import Experiment
from kfl.experiment.availability import open_traces
from kfl.models import FleetModels, architectures, fleet_from_modules, fleet_from_name, names_widths, read_model
from kfl.simulation.fleet import DeviceTable
from kfl.wireless import Cell
from kfl.wireless.sizing import describe_sized_cell, sized_cell

if TYPE_CHECKING:
    from kfl.data.dataset import Data
    from kfl.models import Models

log = logging.getLogger("kfl")


@dataclass(frozen=True, eq=False)
class World:
    """Data, devices, models and channel of one experiment."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    models: FleetModels
    engine: Engine
    cell: Cell | None
    table: DeviceTable
    given_as_objects: tuple[str, ...] = ()
    """Which of "dataset" and "models" the caller gave as Python objects: the configuration cannot rebuild them."""

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return self.table.size

    def identity(self, configuration: str) -> str:
        """What run a checkpoint belongs to: the configuration in its folder, the plan it is executed by, the data."""
        plan = repr(sorted(self.engine.plan.table().items()))
        facts = [configuration, plan, self.dataset.fingerprint()]
        return blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()

    def _data_path(self) -> Path | None:
        """The file or folder the data was read from, where the configuration names one."""
        return None if "dataset" in self.given_as_objects else dataset_path(self.experiment.dataset)

    def describe(self) -> dict[str, Any]:
        """The data, the models and how they are executed, for the run folder."""
        data, names = self.dataset, self.models.names
        return {
            "dataset": {
                "name": data.name,
                "fingerprint": data.fingerprint(),
                "train": len(data.train_y),
                "test": len(data.test_y),
                "input_shape": list(data.input_shape),
                "classes": data.classes,
                **({"class_names": list(data.class_names)} if data.class_names else {}),
                "scale": data.scale,
                "mean": data.mean,
                "std": data.std,
                "note": data.note,
                **({} if data.view is None else {"encoder": asdict(data.view)}),
                **({"path": str(where)} if (where := self._data_path()) is not None else {}),
            },
            "models": sorted(set(names)) if len(names) <= 20 else len(names),
            "given_as_objects": list(self.given_as_objects),
            "plan": self.engine.plan.table(),
            "sources": source_hashes(self.experiment),
            **trace_facts(self.experiment),
        }


def build_world(
    experiment: Experiment,
    *,
    dataset: Data | None = None,
    models: Models | None = None,
    data_dir: Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
    plan: Plan | None = None,
) -> World:
    """Everything a run needs, checked: the data is read, split, and every architecture tried once.

    Args:
        experiment: The configuration.
        dataset: In place of the one it names.
        models: In place of those it names.
        data_dir: Where the files of named sets are.
        device: cpu, cuda or auto.
        precision: Of products: float32, tf32, bf16 or float64.
        plan: How the engine executes; None to make one.

    Raises:
        KflError: Data, models and configuration do not fit together.
    """
    if not experiment.asks_data:
        experiment.validate()  # before the data is read, where it can be
    data = load_dataset(experiment.dataset, data_dir) if dataset is None else Dataset.of(dataset)
    if experiment.asks_data:
        experiment = experiment.for_data(data)
        experiment.validate()
    if models is None:  # else they are looked at first
        experiment = with_cell(experiment, data)
    data = _encoded(experiment, data)
    if models is None and not experiment.algorithm.needs_encoder:
        experiment = _with_widths(experiment, data)
    proxy = experiment.proxy(data, experiment.algorithm.proxy_per_class)
    split = experiment.partition(data, proxy)
    if split.train_sizes.min() < 1:
        raise DataError(f"A split over {experiment.devices} devices leaves a device without a sample; use fewer.")
    if not split.test_sizes.any():
        raise DataError("No device has a test sample: the test set has none of the classes that devices hold.")
    fleet_models = _models(experiment, data, models)
    experiment = with_cell(experiment, data, fleet_models)
    fleet_models = experiment.algorithm.device_models(fleet_models)
    experiment.algorithm.check_models(fleet_models)
    local = LocalData(data, split, proxy)
    engine = make_engine(local, fleet_models, device, precision, plan)
    kinds, kind = _kinds(fleet_models, split)
    profiles = [engine.profile(device) for device in kinds.tolist()]
    server = experiment.algorithm.server_init(engine, experiment.seed)
    costs = experiment.algorithm.costs(profiles, server, real_work=experiment.real_work)
    own = [profile.model.state_values - experiment.algorithm.added_parameters(profile) for profile in profiles]
    samples = split.train_sizes.astype(np.float64)
    radio = experiment.cell_config
    cell = None if radio is None else Cell.build(radio, experiment.devices, experiment.seed)
    budget = np.full(experiment.devices, np.inf) if cell is None else cell.budget_j(experiment.rounds)
    return World(
        experiment=experiment,
        dataset=data,
        partition=split,
        models=fleet_models,
        engine=engine,
        cell=cell,
        table=DeviceTable(
            samples=samples,
            test_samples=split.test_sizes,
            flops=np.array([cost.flops for cost in costs], dtype=np.float64)[kind],
            bits_up=np.array([cost.bits_up for cost in costs], dtype=np.float64)[kind],
            bits_down=np.array([cost.bits_down for cost in costs], dtype=np.float64)[kind],
            model_bits=np.array([values * 32 for values in own], dtype=np.float64)[kind],
            budget_j=budget,
            first_flops=None if data.view is None or not data.view.flops else data.view.flops * samples,
            first_bits_down=0.0 if data.view is None else data.view.download_bits,
            class_counts=split.train_counts,
        ),
        given_as_objects=tuple(name for name, given in (("dataset", dataset), ("models", models)) if given is not None),
    )


def _kinds(models: FleetModels, split: Partition) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One device of each kind, by network, samples and classes held, and the kind of each: what costs depend on."""
    held = (split.train_counts > 0).sum(1)
    number = (models.architecture * (int(split.train_sizes.max()) + 1) + split.train_sizes) * (split.classes + 1) + held
    _, first, kind = np.unique(number, return_index=True, return_inverse=True)
    return first, kind


def with_cell(experiment: Experiment, data: Dataset, models: FleetModels | None = None) -> Experiment:
    """The experiment with its cell: where none is named, one that is sized to its data and networks, and hard budgets.

    Neither the algorithm nor the seed decides anything: what is compared has the same cell.

    Args:
        experiment: What is going to run.
        data: Its data, before any encoder.
        models: The networks of its devices, where they are no names.
    """
    if experiment.radio != AUTO:
        return experiment
    from kfl.encoders import make_encoder

    shape, name, once = data.input_shape, experiment.encoder, 0.0
    if name != NONE and data.view is None:
        encoder = make_encoder(encoder_for(shape) if name == AUTO else name)
        shape, once = shape if name == AUTO else (encoder.size(shape),), encoder.flops(shape)
    if models is None:
        networks = (experiment.model, experiment.widths, experiment.devices)
        models = fleet_from_name(*networks, shape, data.classes, seed=0)
    samples = replace(experiment, seed=0).partition(data).train_sizes.astype(np.float64)
    flops = np.array([profile.flops for profile in models.profiles])[models.architecture]
    bits = 32.0 * np.array([profile.state_values for profile in models.profiles])[models.architecture]
    cell = sized_cell(flops * samples, bits, experiment.rounds, once * samples)
    log.info("%s", describe_sized_cell(cell, experiment.rounds))
    found = replace(experiment, radio=cell, hard_budget=True)
    open_traces(found)  # a trace must last for rounds that are so long
    return found


def _encoded(experiment: Experiment, data: Dataset) -> Dataset:
    """The data through the experiment's encoder; with `auto` the one that suits it, where the algorithm needs one."""
    from kfl.encoders import encoded

    name = experiment.encoder
    if data.view is not None:  # the caller has encoded it
        return data
    if name == AUTO:
        name = encoder_for(data.input_shape) if experiment.algorithm.needs_encoder else NONE
    return data if name == NONE else encoded(data, name)


def _with_widths(experiment: Experiment, data: Dataset) -> Experiment:
    """The experiment with the widths that devices draw from, where it left them to the network and the data."""
    if experiment.widths is not None or names_widths(experiment.model):
        return experiment
    found = architectures(experiment.model, None, data.input_shape)
    return replace(experiment, widths=tuple(width for _, width in found if width is not None))


def _models(experiment: Experiment, data: Dataset, models: Models | None) -> FleetModels:
    if models is not None:
        return fleet_from_modules(models, experiment.devices, data.input_shape, data.classes)
    if experiment.algorithm.needs_encoder:  # it stands on numbers, whatever networks others of a comparison have
        return fleet_from_name("linear", None, experiment.devices, data.input_shape, data.classes, experiment.seed)
    return fleet_from_name(
        experiment.model, experiment.widths, experiment.devices, data.input_shape, data.classes, experiment.seed
    )


def trace_facts(experiment: Experiment) -> dict[str, Any]:
    """The traces of a run with their hashes, for the run folder; empty without."""
    traces = open_traces(experiment)
    facts = {name: {"path": str(trace.path), "fingerprint": trace.fingerprint} for name, trace in traces.items()}
    return {"traces": facts} if facts else {}


def source_hashes(experiment: Experiment) -> dict[str, str]:
    """A hash of the source file of every module the user named, so that a later reader can tell it is the same."""
    hashes = {}
    table = experiment.to_table()
    models = [name for name, _ in read_model(experiment.model)]
    for name in (*models, experiment.dataset, table["algorithm"]["name"], table["scheduler"]["name"]):
        module_name, colon, _ = name.partition(":")
        if colon:
            try:
                source = inspect.getsourcefile(importlib.import_module(module_name))
            except (ImportError, TypeError):  # a class made on the spot, in a notebook or a script
                source = None
            if source is not None:
                hashes[name] = blake2b(Path(source).read_bytes(), digest_size=16).hexdigest()
    return hashes
