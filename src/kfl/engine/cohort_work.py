"""What is done with one cohort: train it, read its features, test it.

By the hand-written network where `kfl.engine.cuda` has a trainer or a runner for it and by torch.func where not. Either
way it goes through `GraphRunner`, so that a repeated shape is one CUDA graph: of a whole handwritten training, of one
step by torch.func. There, a cohort is filled up to one of few sizes with devices whose results are dropped, so that few
graphs serve rounds with any number of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kfl.data import LocalData
from kfl.engine.base import ClassStatistics, Outputs, RoundKey, Sgd
from kfl.engine.cohorts import Family
from kfl.engine.cuda.kernels import CohortKernels, Trainer
from kfl.engine.descent import batches, batches_per_pass
from kfl.engine.graphs import GraphRunner, Input
from kfl.engine.layers import step_seed
from kfl.engine.objectives import Descent, Objective
from kfl.engine.precision import Arithmetic
from kfl.engine.samples import (
    Batch,
    GivenTable,
    ResidentTable,
    Rows,
    Split,
    Steps,
    StoredTable,
    Table,
    mini_batches,
)
from kfl.engine.stack import Stack
from kfl.engine.stacked_convolution import StackedConvolution
from kfl.engine.vectorized import CohortStep, ObjectiveParts, run_vectorized, split_objective
from kfl.models import State
from kfl.models.network import tied, with_ties

RESIDENT_SHARE = 0.25
"""Part of a GPU's memory that a stored dataset may take; a larger one stays where it is."""
READY_SHARE = 0.05
"""Part of a GPU's memory up to which the dataset is kept as scaled numbers, not as it is stored."""
ROW_STEP = 32
"""On a GPU, unequal numbers of samples are rounded up to multiples of this, so that few shapes are recorded."""

Given = tuple[Tensor, Tensor]
"""Inputs and targets that all devices are trained on."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Devices of one family, those of one architecture next to each other."""

    family: Family
    devices: Sequence[int]
    states: Sequence[State]


@dataclass(frozen=True, eq=False)
class _Work:
    """One training of one cohort."""

    cohort: Cohort
    parts: ObjectiveParts
    descent: Descent
    stack: Stack
    needed: dict[str, Input]
    """What goes into the computation whatever way it is done: states, tensors of the objective, given samples."""
    sgd: Sgd
    key: RoundKey
    given: Given | None

    def signature(self, sizes: tuple[int, ...]) -> Hashable | None:
        """Equal for trainings that are the same computation; None where that is not known."""
        own = self.parts.spec, tuple(self.parts.stacked), self.sgd, sizes, tuple(self.descent.rates.items())
        return _hashable(("train", id(self.cohort.family), *own))


class CohortWork:
    """Does the work of cohorts on one processor."""

    def __init__(
        self,
        data: LocalData,
        arithmetic: Arithmetic,
        where: torch.device,
        *,
        convolution: str,
        graphs: bool,
        fused: bool,
    ) -> None:
        self.graphs = GraphRunner(enabled=graphs and where.type == "cuda")
        self.objectives: dict[str, str] = {}
        """How each kind of objective was trained."""
        self._data = data
        self._arithmetic = arithmetic
        self._where = where
        self._kernels = CohortKernels(arithmetic, where, convolution=convolution, enabled=fused)
        own = where.type == "cuda" and convolution != "grouped"
        self._convolution = StackedConvolution(arithmetic, where) if own else None
        self._rows = Rows(data, where, arithmetic.dtype)
        self._tables: dict[Split, Table] = {}

    def free(self) -> None:
        """Give back memory that is only kept for speed."""
        self.graphs.forget()
        if self._where.type == "cuda":
            torch.cuda.empty_cache()

    def kind(self, family: Family) -> str:
        """What runs for a family, and why."""
        if not family.verdict.vectorized:
            return f"sequential: {family.verdict.reason}"
        return self._kernels.describe(family.network) or "torch.func"

    # ── Training ──

    def train(
        self,
        cohort: Cohort,
        objectives: Sequence[Objective],
        sgd: Sgd,
        key: RoundKey,
        given: Given | None,
    ) -> list[State] | None:
        """The trained states; None where the devices' objectives are too different to be one."""
        cohort, own = self._filled_up(cohort), [*objectives]
        own += own[:1] * (len(cohort.devices) - len(own))
        parts = split_objective(own)
        if parts is None:
            return None
        stack = self._stack(cohort)
        moving = [name for name in stack.names() if name.rpartition("/")[2] not in cohort.family.buffers]
        descent = parts.sample.descent(moving, sgd)
        tensors = {f"tensor {number}": value for number, value in enumerate({**parts.shared, **parts.stacked}.values())}
        needed = {**stack.inputs(), **{name: self._keep(value) for name, value in tensors.items()}}
        if given is not None:
            needed.update({"given inputs": self._keep(given[0]), "given targets": self._keep(given[1])})
        trainer = self._kernels.trainer(cohort.family.network, parts.sample, stack.names(), descent)
        self.objectives[type(parts.sample).__name__] = "torch.func" if trainer is None else "handwritten"
        work = _Work(cohort, parts, descent, stack, needed, sgd, key, given)
        trained = self._train_stepwise(work) if trainer is None else self._train_by_hand(work, trainer)
        return stack.take(trained)[: len(objectives)]

    def _train_by_hand(self, work: _Work, trainer: Trainer) -> State:
        """One graph for all steps."""
        steps, passes = self._steps(work)
        paths, stack = [*work.parts.shared, *work.parts.stacked], work.stack

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            batches = _readers(self._source(work, held), held, steps) * passes
            tensors = {path: held[f"tensor {number}"] for number, path in enumerate(paths)}
            state = {name: held[name] for name in stack.names()}
            return trainer(state, batches, work.parts.with_tensors(tensors))

        return self.graphs.run(work.signature(steps.sizes), {**work.needed, **_step_inputs(steps)}, body)

    def _train_stepwise(self, work: _Work) -> State:
        """One graph for one step."""
        steps, passes = self._steps(work)
        family, stack = work.cohort.family, work.stack
        paths, moving = [*work.parts.shared, *work.parts.stacked], [*work.descent.rates]
        needed = dict(work.needed)
        for name in moving:
            needed[f"velocity {name}"] = _zeros(needed[name].shape, self._arithmetic.dtype, self._where)
        draws = family.verdict.draws
        if draws:
            seeds = [work.key.torch_seed("layers", device) for device in work.cohort.devices]
            needed["seeds"] = _ready(torch.tensor(seeds).to(self._where))
        one = CohortStep(
            family.template, work.parts, work.descent, family.buffers, draws, self._arithmetic, self._convolution
        )

        def body(held: dict[str, Tensor]) -> None:
            batch = (*self._source(work, held).gather(held["rows"]), held.get("weights"))
            one(
                {name: held[name] for name in stack.names()},
                {name: held[f"velocity {name}"] for name in moving},
                {path: held[f"tensor {number}"] for number, path in enumerate(paths)},
                batch,
                held.get("active"),
                step_seed(held["seeds"], held["number"]) if draws else None,
            )

        count = len(steps.sizes)
        numbers = torch.arange(count * passes, device=self._where)
        seen = [
            {**_seen(steps, step % count), **({"number": numbers[step]} if draws else {})}
            for step in range(count * passes)
        ]
        trained = self.graphs.run_steps(work.signature(()), needed, seen, body, stack.names())
        return with_ties(trained, tied(family.template), copies=True)

    def _source(self, work: _Work, held: dict[str, Tensor]) -> Table:
        if work.given is None:
            return self._table("train")
        return GivenTable(held["given inputs"], held["given targets"])

    def _filled_up(self, cohort: Cohort) -> Cohort:
        """A cohort of the general path with its first device repeated, up to one of few sizes."""
        extra = _bucket(len(cohort.devices)) - len(cohort.devices)
        if not self.graphs.enabled or extra == 0 or self._kernels.runner(cohort.family.network) is not None:
            return cohort
        devices, states = list(cohort.devices), list(cohort.states)
        return Cohort(cohort.family, devices + devices[:1] * extra, states + states[:1] * extra)

    def _steps(self, work: _Work) -> tuple[Steps, int]:
        """The steps of one pass with the number of passes, or all steps and 1."""
        cohort, sgd, given = work.cohort, work.sgd, work.given
        counts = [self._data.size(device, "train") if given is None else len(given[1]) for device in cohort.devices]
        if any(batches_per_pass(count, sgd) > 0 for count in counts):
            drawn = []
            for device, count in zip(cohort.devices, counts, strict=True):
                rows = self._rows.of(device, "train") if given is None else np.arange(count)
                chosen = batches(len(rows), sgd, work.key, device)
                drawn.append([rows if batch is None else rows[batch.numpy()] for batch in chosen])
            return mini_batches(drawn, self._where, self._arithmetic.dtype), 1
        if given is not None:
            row = torch.arange(counts[0], device=self._where)
            return Steps(row.expand(1, len(cohort.devices), -1), None, (counts[0],)), sgd.steps
        return self._whole(cohort, "train"), sgd.steps

    def _whole(self, cohort: Cohort, split: Split) -> Steps:
        """All samples of each device."""
        counts = [self._data.size(device, split) for device in cohort.devices]
        size = max(counts)
        verdict = cohort.family.verdict
        if self.graphs.enabled and verdict.separable and verdict.separable_reading and min(counts) < size:
            size = -(-size // ROW_STEP) * ROW_STEP
        return self._rows.whole(cohort.devices, split, size)

    # ── Reading ──

    def class_statistics(
        self, cohort: Cohort, of: Outputs = "features", *, scatter: bool = False, clip_norm: float | None = None
    ) -> ClassStatistics:
        """Equation (4) for a cohort."""
        count, cohort = len(cohort.devices), self._filled_up(cohort)
        stack, steps = self._stack(cohort), self._whole(cohort, "train")
        classes = self._data.dataset.classes
        needed = {**({} if of == "inputs" else stack.inputs()), **_step_inputs(steps)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            inputs, labels, weights = _readers(self._table("train"), held, steps)[0]()
            if of == "inputs":
                outputs = inputs.flatten(2)
            else:
                feature, logits = self._run(cohort.family, stack, held, inputs)
                outputs = feature if of == "features" else logits
            if clip_norm is not None:
                outputs = outputs * (clip_norm / outputs.norm(dim=2, keepdim=True)).clamp(max=1)
            member = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
            if weights is not None:
                member = member & (weights > 0).unsqueeze(-1)
            counts = member.sum(1)
            # The sum of a class is a product with zeros and ones, never rounded beyond the type of the weights.
            with self._arithmetic.products(exact=True):
                total = torch.bmm(member.to(outputs.dtype).transpose(1, 2), outputs)
            found = {"means": total / counts.clamp(min=1).unsqueeze(-1), "counts": counts}
            if scatter:
                exact, belongs = outputs.double(), member.double()
                centers = torch.bmm(belongs.transpose(1, 2), exact) / counts.clamp(min=1).unsqueeze(-1)
                # Samples that fill a device up belong to no class: they are no further from it than not at all.
                apart = (exact - torch.bmm(belongs, centers)) * belongs.sum(2, keepdim=True)
                found["scatter"] = torch.bmm(apart.transpose(1, 2), apart)
            return found

        found = self.graphs.run(("statistics", id(cohort.family), clip_norm, of, scatter), needed, body)
        taken = {name: value[:count] for name, value in found.items()}
        return ClassStatistics(taken["means"], taken["counts"], taken.get("scatter"))

    def correct(self, cohort: Cohort) -> Tensor:
        """Number of correct predictions of each device on its own test samples."""
        count, cohort = len(cohort.devices), self._filled_up(cohort)
        stack, steps = self._stack(cohort), self._whole(cohort, "test")
        needed = {**stack.inputs(), **_step_inputs(steps)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            inputs, labels, weights = _readers(self._table("test"), held, steps)[0]()
            right = self._run(cohort.family, stack, held, inputs)[1].argmax(2) == labels
            return {"right": (right if weights is None else right & (weights > 0)).sum(1)}

        return self.graphs.run(("correct", id(cohort.family)), needed, body)["right"][:count]

    def logits(self, cohort: Cohort, inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""
        count, cohort = len(cohort.devices), self._filled_up(cohort)
        stack = self._stack(cohort)
        needed = {**stack.inputs(), "given inputs": self._keep(inputs)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            shared = held["given inputs"].expand(len(cohort.devices), *inputs.shape)
            return {"logits": self._run(cohort.family, stack, held, shared)[1]}

        return self.graphs.run(("logits", id(cohort.family)), needed, body)["logits"][:count]

    def _run(self, family: Family, stack: Stack, held: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        state = {name: held[name] for name in stack.names()}
        runner = self._kernels.runner(family.network)
        if runner is not None:
            return runner(state, inputs)
        return run_vectorized(family.template, state, inputs, self._arithmetic, self._convolution)

    # ── Parts ──

    def _stack(self, cohort: Cohort) -> Stack:
        return Stack(cohort.family.shapes, cohort.states, self._arithmetic.dtype, self._where)

    def _keep(self, value: Tensor) -> Input:
        """A tensor as an input: where the engine computes, in its type."""
        dtype = self._arithmetic.dtype if value.is_floating_point() else value.dtype

        def fill(memory: Tensor | None) -> Tensor:
            return value.to(self._where, dtype) if memory is None else memory.copy_(value)

        return Input(tuple(value.shape), fill)

    def _table(self, split: Split) -> Table:
        if split not in self._tables:
            dataset, dtype = self._data.dataset, self._arithmetic.dtype
            stored = dataset.train_x if split == "train" else dataset.test_x
            memory = torch.cuda.get_device_properties(self._where).total_memory if self._where.type == "cuda" else 0
            if stored.nbytes <= RESIDENT_SHARE * memory:
                ready = 4 * stored.size <= READY_SHARE * memory
                self._tables[split] = ResidentTable(dataset, split, dtype, self._where, ready=ready)
            else:
                self._tables[split] = StoredTable(dataset, split, dtype, self._where)
                # Rows that are read from a file cannot be part of a graph.
                self.graphs.enabled = False
        return self._tables[split]


def _step_inputs(steps: Steps) -> dict[str, Input]:
    found = {"step rows": _ready(steps.rows)}
    if steps.weights is not None:
        found["step weights"] = _ready(steps.weights)
    return found


def _ready(value: Tensor) -> Input:
    return Input(tuple(value.shape), lambda memory: value if memory is None else memory.copy_(value))


def _seen(steps: Steps, number: int) -> dict[str, Tensor]:
    """What one step sees, by the names it has in the computation."""
    if steps.weights is None:
        found = {"rows": steps.rows[number, :, : steps.sizes[number]]}
    else:  # filled up as it is, every step has one shape
        found = {"rows": steps.rows[number], "weights": steps.weights[number]}
    if steps.active is not None:
        found["active"] = steps.active[number]
    return found


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, where: torch.device) -> Input:
    return Input(
        shape, lambda memory: torch.zeros(shape, dtype=dtype, device=where) if memory is None else memory.zero_()
    )


def _bucket(count: int) -> int:
    """The size of a cohort that holds so many devices: at most a quarter more.

    >>> [_bucket(count) for count in (3, 5, 9, 17, 33, 100)]
    [3, 6, 10, 20, 40, 112]
    """
    step = 1 if count <= 4 else max(2, 1 << ((count - 1).bit_length() - 3))
    return -(-count // step) * step


def _readers(table: Table, held: dict[str, Tensor], steps: Steps) -> list[Callable[[], Batch]]:
    """For each step, how to read its batch."""

    def reader(number: int, size: int) -> Callable[[], Batch]:
        weights = held["step weights"][number, :, :size] if "step weights" in held else None
        return lambda: (*table.gather(held["step rows"][number, :, :size]), weights)

    return [reader(number, size) for number, size in enumerate(steps.sizes)]


def _hashable(key: object) -> Hashable | None:
    """The key where it has a hash."""
    try:
        hash(key)
    except TypeError:
        return None
    return key
