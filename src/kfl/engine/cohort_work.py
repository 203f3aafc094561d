"""What is done with one cohort: train it, read its features, test it.

Each is one computation of fixed shape, by hand where `kfl._kernels.cuda` has a trainer or a runner for it and by
torch.func where not. Either way it goes through `GraphRunner`, so that a repeated shape is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cuda import (
    Batch,
    CohortKernels,
    GivenTable,
    GraphRunner,
    Input,
    ResidentTable,
    Rows,
    Split,
    Stack,
    Steps,
    StoredTable,
    Table,
    mini_batches,
)
from kfl.data import LocalData
from kfl.engine.base import RoundKey, Sgd
from kfl.engine.cohort import Family
from kfl.engine.objectives import Objective
from kfl.engine.sequential import batches, batches_per_pass
from kfl.engine.vectorised import run_vectorised, split_objective, train_vectorised
from kfl.models import State

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
        self._rows = Rows(data, where, arithmetic.dtype)
        self._tables: dict[Split, Table] = {}

    def free(self) -> None:
        """Give back memory that is only kept for speed."""
        self.graphs.forget()
        if self._where.type == "cuda":
            torch.cuda.empty_cache()

    def kind(self, family: Family) -> str:
        """What runs for a family, and why."""
        if not family.verdict.vectorised:
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
        parts = split_objective(objectives)
        if parts is None:
            return None
        steps, passes = self._steps(cohort, sgd, key, given)
        stack = self._stack(cohort)
        moving = [name for name in stack.names() if name.rpartition("/")[2] not in cohort.family.buffers]
        descent = parts.sample.descent(moving, sgd)
        tensors = {**parts.shared, **parts.stacked}
        needed = {**stack.inputs(), **_step_inputs(steps)}
        needed.update({f"tensor {number}": self._keep(value) for number, value in enumerate(tensors.values())})
        if given is not None:
            needed.update({"given inputs": self._keep(given[0]), "given targets": self._keep(given[1])})
        trainer = self._kernels.trainer(cohort.family.network, parts.sample.closed_form(), stack.names(), descent)
        self.objectives[type(parts.sample).__name__] = "torch.func" if trainer is None else "by hand"

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            table = self._table("train") if given is None else GivenTable(held["given inputs"], held["given targets"])
            batches = _readers(table, held, steps) * passes
            state = {name: held[name] for name in stack.names()}
            own = {path: held[f"tensor {number}"] for number, path in enumerate(tensors)}
            form = None if trainer is None else parts.with_tensors(own).closed_form()
            if trainer is not None and form is not None:
                return trainer(state, batches, form)
            return train_vectorised(cohort.family.template, state, parts, own, batches, descent, self._arithmetic)

        signature = _hashable(("train", id(cohort.family), parts.spec, tuple(parts.stacked), sgd, steps.sizes))
        return stack.take(self.graphs.run(signature, needed, body))

    def _steps(self, cohort: Cohort, sgd: Sgd, key: RoundKey, given: Given | None) -> tuple[Steps, int]:
        """The steps of one pass with the number of passes, or all steps and 1."""
        count = self._data.size(cohort.devices[0], "train") if given is None else len(given[1])
        if batches_per_pass(count, sgd) > 0:
            drawn = []
            for device in cohort.devices:
                rows = self._rows.of(device, "train") if given is None else np.arange(count)
                chosen = batches(len(rows), sgd, key, device)
                drawn.append([rows if batch is None else rows[batch.numpy()] for batch in chosen])
            return mini_batches(drawn, self._where, self._arithmetic.dtype), 1
        if given is not None:
            row = torch.arange(count, device=self._where)
            return Steps(row.expand(1, len(cohort.devices), -1), None, (count,)), sgd.steps
        return self._whole(cohort, "train"), sgd.steps

    def _whole(self, cohort: Cohort, split: Split) -> Steps:
        """All samples of each device."""
        counts = [self._data.size(device, split) for device in cohort.devices]
        size = max(counts)
        if self.graphs.enabled and cohort.family.verdict.separable and min(counts) < size:
            size = -(-size // ROW_STEP) * ROW_STEP
        return self._rows.whole(cohort.devices, split, size)

    # ── Reading ──

    def class_means(self, cohort: Cohort, clip_norm: float | None) -> tuple[Tensor, Tensor]:
        """Equation (4) for a cohort: means (devices, classes, features) and counts (devices, classes)."""
        stack, steps = self._stack(cohort), self._whole(cohort, "train")
        classes = self._data.dataset.classes
        needed = {**stack.inputs(), **_step_inputs(steps)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            inputs, labels, weights = _readers(self._table("train"), held, steps)[0]()
            feature, _ = self._run(cohort.family, stack, held, inputs)
            if clip_norm is not None:
                feature = feature * (clip_norm / feature.norm(dim=2, keepdim=True)).clamp(max=1)
            member = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
            if weights is not None:
                member = member & (weights > 0).unsqueeze(-1)
            counts = member.sum(1)
            # The sum of a class is a product with zeros and ones, never rounded beyond the type of the weights.
            with self._arithmetic.products(exact=True):
                total = torch.bmm(member.to(feature.dtype).transpose(1, 2), feature)
            return {"means": total / counts.clamp(min=1).unsqueeze(-1), "counts": counts}

        found = self.graphs.run(("means", id(cohort.family), clip_norm), needed, body)
        return found["means"], found["counts"]

    def correct(self, cohort: Cohort) -> Tensor:
        """Number of correct predictions of each device on its own test samples."""
        stack, steps = self._stack(cohort), self._whole(cohort, "test")
        needed = {**stack.inputs(), **_step_inputs(steps)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            inputs, labels, weights = _readers(self._table("test"), held, steps)[0]()
            right = self._run(cohort.family, stack, held, inputs)[1].argmax(2) == labels
            return {"right": (right if weights is None else right & (weights > 0)).sum(1)}

        return self.graphs.run(("correct", id(cohort.family)), needed, body)["right"]

    def logits(self, cohort: Cohort, inputs: Tensor) -> Tensor:
        """The logits of each model for the same inputs."""
        stack = self._stack(cohort)
        needed = {**stack.inputs(), "given inputs": self._keep(inputs)}

        def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
            shared = held["given inputs"].expand(len(cohort.devices), *inputs.shape)
            return {"logits": self._run(cohort.family, stack, held, shared)[1]}

        return self.graphs.run(("logits", id(cohort.family)), needed, body)["logits"]

    def _run(self, family: Family, stack: Stack, held: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        state = {name: held[name] for name in stack.names()}
        runner = self._kernels.runner(family.network)
        if runner is not None:
            return runner(state, inputs)
        return run_vectorised(family.template, state, inputs, self._arithmetic)

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
