"""The CPU's door: which networks and losses are written out by hand for one device, and the work itself.

Full-batch steps of the paper's two kinds of networks. Each call is the work of one worker thread; converted inputs,
Gram matrices and outputs of first layers are kept between calls while there is room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.closed_form import MIXING, ClosedForm, Descent, mixture_names
from kfl._kernels.cpu.cnn import CnnGradients, ImageSamples, compile_kernels, conv_features, train_cnn
from kfl._kernels.cpu.conv_kernels import BACKWARD_OUTPUTS, REGISTER_SUMS, row_lanes
from kfl._kernels.cpu.mixture import Gradients, train_mixture
from kfl._kernels.cpu.mlp import FlatSamples, MlpGradients, body_features, gram_pays, train_mlp
from kfl._kernels.memory import BoundedCache, OwnedValue, tensor_bytes, workspace
from kfl._kernels.output_gradients import OutputGradients
from kfl.data import LocalData
from kfl.models import Network, State

CACHE_BYTES = 320 * 2**20
"""Room for converted inputs and Gram matrices, whatever the number of devices: the paper's MNIST fleet fits."""
STARTS_BYTES = 128 * 2**20
"""Room for the outputs of MLPs' first layers when features were last read: again the paper's MNIST fleet."""

Split = Literal["train", "test"]
Given = tuple[Tensor, Tensor]
"""Inputs and targets that all devices are trained on."""
Trainer = Callable[[int, State, ClosedForm, Given | None], State]
"""(device, state, loss, data or None for the device's own) → trained state."""
Samples = TypeVar("Samples", FlatSamples, ImageSamples)


def kind(network: Network | None) -> Literal["mlp", "cnn"] | None:
    """Which of the hand-written passes can run a network; None where none can.

    >>> from kfl.models import cnn, mlp, read_network
    >>> [kind(read_network(*one)) for one in ((mlp(), (1, 28, 28)), (cnn(), (3, 32, 32)))]
    ['mlp', 'cnn']
    """
    if network is None or not all(layer.rectified for layer in network.dense):
        return None
    if not network.convolutions:
        return "mlp"
    if len(network.convolutions) != 2:
        return None
    first, second = network.convolutions
    fits = second.channels_out == BACKWARD_OUTPUTS and first.channels_out * first.kernel <= REGISTER_SUMS
    large = min(first.outputs, second.outputs) >= BACKWARD_OUTPUTS
    return "cnn" if fits and large and row_lanes(first) == BACKWARD_OUTPUTS else None


class DeviceKernels:
    """Hand-written passes for the networks of a fleet."""

    def __init__(self, data: LocalData, arithmetic: Arithmetic, *, gram: bool) -> None:
        self._data = data
        self._arithmetic = arithmetic
        self._mlp = _Mlp(data, arithmetic, gram=gram)
        self._cnn: _Cnn | None = None

    def compile(self, network: Network) -> bool:
        """Compile now what a network will need, so that no round waits for it; once before it is first used.

        False for a network that cannot be run by hand.
        """
        found = kind(network)
        if found == "cnn":
            compile_kernels(network, self._arithmetic)
            if self._cnn is None:
                self._cnn = _Cnn(self._data, self._arithmetic, self._mlp.cache)
        return found is not None

    def trainer(
        self, network: Network | None, form: ClosedForm | None, names: Collection[str], descent: Descent, steps: int
    ) -> Trainer | None:
        """How full-batch steps of a network are done by hand; None: by the general path.

        `names` are the entries of the state that is trained.
        """
        if network is None or form is None or kind(network) is None:
            return None
        known = mixture_names(network.parameters) if form.mixture else set(network.parameters)
        if set(names) != known or (form.mixture and not known - {MIXING} <= descent.rates.keys()):
            return None
        passes, classes, dtype = self._passes(network), self._data.dataset.classes, self._arithmetic.dtype

        def train(device: int, state: State, form: ClosedForm, given: Given | None) -> State:
            if given is None:
                samples, targets = passes.samples([device], "train"), self._data.labels(device, "train")
            else:
                samples, targets = passes.of(given[0].to(dtype)), given[1]
            outputs = OutputGradients.for_device(form, targets, classes, dtype)
            if form.mixture:
                return train_mixture(passes.gradients(network, samples, outputs), state, descent, steps)
            whose = device if given is None else None
            trained = passes.train(network, whose, state, samples, outputs, descent, steps)
            return {name: trained[name] for name in state}

        return train

    def train_features(self, device: int, network: Network, state: State) -> Tensor:
        """Features of a device's own training samples; overwritten by the next call of this thread."""
        return self._passes(network).train_features(device, network, state)

    def train_logits(self, device: int, network: Network, state: State) -> Tensor:
        """Logits of a device's own training samples."""
        return self._logits(state, self.train_features(device, network, state))

    def test_logits(self, devices: Sequence[int], network: Network, state: State) -> Tensor:
        """Logits of the test samples of devices with one common model, one device after another."""
        passes = self._passes(network)
        return self._logits(state, passes.features(network, state, passes.samples(devices, "test")))

    def logits(self, network: Network, inputs: Tensor) -> Callable[[Network, State], Tensor]:
        """A function that gives the logits of these inputs for any network of the same kind."""
        passes = self._passes(network)
        samples = passes.of(inputs.to(self._arithmetic.dtype))
        return lambda network, state: self._logits(state, passes.features(network, state, samples))

    def _logits(self, state: State, features: Tensor) -> Tensor:
        return torch.addmm(state["head.bias"], features.to(self._arithmetic.dtype), state["head.weight"].t())

    def _passes(self, network: Network) -> _Passes[Any]:
        if not network.convolutions:
            return self._mlp
        assert self._cnn is not None, "a network with convolutions must be compiled first"
        return self._cnn


class _Passes(ABC, Generic[Samples]):
    """The passes of one kind of network, and the inputs as they need them."""

    def __init__(self, data: LocalData, arithmetic: Arithmetic, cache: BoundedCache) -> None:
        self.data = data
        self.arithmetic = arithmetic
        self.cache = cache

    def samples(self, devices: Sequence[int], split: Split) -> Samples:
        """The inputs of devices, one after another."""
        return self.cache.get((split, *devices), lambda: self.read(devices, split), lambda samples: samples.size)

    def train_features(self, device: int, network: Network, state: State) -> Tensor:
        """Features of a device's training samples."""
        return self.features(network, state, self.samples([device], "train"))

    @abstractmethod
    def of(self, inputs: Tensor) -> Samples:
        """Given inputs."""

    @abstractmethod
    def read(self, devices: Sequence[int], split: Split) -> Samples:
        """The stored inputs of devices."""

    @abstractmethod
    def features(self, network: Network, state: State, samples: Samples) -> Tensor:
        """Features of some samples; overwritten by the next call of this thread."""

    @abstractmethod
    def gradients(self, network: Network, samples: Samples, outputs: OutputGradients) -> Gradients:
        """∇F at any weights."""

    @abstractmethod
    def train(
        self,
        network: Network,
        device: int | None,
        state: State,
        samples: Samples,
        outputs: OutputGradients,
        descent: Descent,
        steps: int,
    ) -> State:
        """Full-batch steps. `device` is the owner of the samples, None where they were given."""

    def write(self, devices: Sequence[int], split: Split, out: Tensor) -> None:
        """The inputs of devices one after another. The heap sees none of it: it would be left full of holes."""
        stored = torch.from_numpy(np.empty(0, self.data.dataset.train_x.dtype)).dtype
        for device, part in zip(devices, out.split([self.data.size(k, split) for k in devices]), strict=True):
            if part.dtype == torch.float32:
                self.data.write(device, split, part, workspace().take("stored", *part.shape, dtype=stored))
            else:  # samples are scaled in float32, whatever is computed with them
                part.copy_(self.data.read(device, split)[0])


class _Mlp(_Passes[FlatSamples]):
    def __init__(self, data: LocalData, arithmetic: Arithmetic, *, gram: bool) -> None:
        super().__init__(data, arithmetic, BoundedCache(CACHE_BYTES))
        self._gram_allowed = gram
        self._starts = BoundedCache(STARTS_BYTES)

    def of(self, inputs: Tensor) -> FlatSamples:
        return FlatSamples.of(inputs, self.arithmetic)

    def read(self, devices: Sequence[int], split: Split) -> FlatSamples:
        count, shape = sum(self.data.size(device, split) for device in devices), self.data.dataset.input_shape
        rows = workspace().take("inputs", count, *shape, dtype=self.arithmetic.dtype)
        self.write(devices, split, rows)
        return self.of(rows)

    def features(self, network: Network, state: State, samples: FlatSamples) -> Tensor:
        return body_features(network, state, samples, self.arithmetic, workspace())

    def train_features(self, device: int, network: Network, state: State) -> Tensor:
        """The output of the first layer is kept: it is where the next training begins."""
        samples = self.samples([device], "train")
        # In bf16 the two are rounded differently.
        if self.arithmetic.factor_dtype != self.arithmetic.dtype or not self._gram_allowed:
            return self.features(network, state, samples)
        owners = _first_layer(network, state)

        def keep(start: Tensor) -> None:
            own = OwnedValue.of(start, owners)
            if own is not None:
                self._starts.put(device, own, tensor_bytes(own.value))

        return body_features(network, state, samples, self.arithmetic, workspace(), keep)

    def gradients(self, network: Network, samples: FlatSamples, outputs: OutputGradients) -> Gradients:
        return MlpGradients(network, samples, outputs, self.arithmetic, workspace())

    def train(
        self,
        network: Network,
        device: int | None,
        state: State,
        samples: FlatSamples,
        outputs: OutputGradients,
        descent: Descent,
        steps: int,
    ) -> State:
        gram = self._gram(device, network, samples, descent, steps)
        start = None if device is None else self._start(device, network, state)
        return train_mlp(network, state, samples, gram, outputs, descent, steps, self.arithmetic, workspace(), start)

    def _gram(
        self, device: int | None, network: Network, samples: FlatSamples, descent: Descent, steps: int
    ) -> Tensor | None:
        """X Xᵀ + 1 of the samples, where it saves work."""
        first, (count, inputs) = network.dense[0], samples.rows.shape
        pays = gram_pays(count, inputs, first.outputs, steps)
        if not self._gram_allowed or not pays or not descent.rates.get(f"{first.name}.weight"):
            return None
        if device is None:
            return samples.gram()
        return self.cache.get((device, "gram"), samples.gram, tensor_bytes)

    def _start(self, device: int, network: Network, state: State) -> Tensor | None:
        """The output of the first layer for a device's training samples, where it was read and is still true."""
        held = self._starts.find(device)
        if isinstance(held, OwnedValue) and held.belongs_to(_first_layer(network, state)):
            return held.value
        return None


def _first_layer(network: Network, state: State) -> tuple[Tensor, Tensor]:
    name = network.dense[0].name
    return state[f"{name}.weight"], state[f"{name}.bias"]


class _Cnn(_Passes[ImageSamples]):
    def __init__(self, data: LocalData, arithmetic: Arithmetic, cache: BoundedCache) -> None:
        super().__init__(data, arithmetic, cache)
        table = data.byte_table()
        self._bytes = None if table is None else table.to(arithmetic.dtype)

    def of(self, inputs: Tensor) -> ImageSamples:
        return ImageSamples.of(inputs, self.arithmetic)

    def read(self, devices: Sequence[int], split: Split) -> ImageSamples:
        count, shape = sum(self.data.size(device, split) for device in devices), self.data.dataset.input_shape
        images, room = ImageSamples.empty(count, shape, self.arithmetic)
        if self._bytes is None:
            self.write(devices, split, room)
        else:
            indices = np.concatenate([self.data.indices(device, split) for device in devices])
            stored = self.data.dataset.train_x if split == "train" else self.data.dataset.test_x
            images.read(stored, self._bytes, indices.astype(np.int64, copy=False))
        return images

    def features(self, network: Network, state: State, samples: ImageSamples) -> Tensor:
        return conv_features(network, state, samples, self.arithmetic, workspace())

    def gradients(self, network: Network, samples: ImageSamples, outputs: OutputGradients) -> Gradients:
        return CnnGradients(network, samples, outputs, self.arithmetic, workspace())

    def train(
        self,
        network: Network,
        device: int | None,
        state: State,
        samples: ImageSamples,
        outputs: OutputGradients,
        descent: Descent,
        steps: int,
    ) -> State:
        return train_cnn(network, state, samples, outputs, descent, steps, self.arithmetic, workspace())
