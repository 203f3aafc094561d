"""What a model is made of: its body and head, and its layers where they are known.

The layers that can be read from a module are convolution blocks, then dense layers, then a linear head. The paper's
MLP and CNN are of this kind, and so are many users' networks. For them every product of the forward and the backward
pass is known and may have handwritten kernels. Networks of different widths may share a batch: a narrow hidden layer is
filled up with units whose weights are zero. Such a unit outputs 0, and because the weights that leave it are zero too,
its gradient is 0: it never changes and never changes anything.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from kfl.core.errors import ModelError


def parts(model: nn.Module, who: str = "The model") -> tuple[nn.Module, nn.Module]:
    """The body and the head of a model, which every model must have.

    Args:
        model: A module with the attributes `body` and `head`.
        who: How the sentence about a fault begins.

    Raises:
        ModelError: One of them is missing, or no module.
    """
    found = []
    for name in ("body", "head"):
        part = getattr(model, name, None)
        if not isinstance(part, nn.Module):
            raise ModelError(
                f"{who} ({type(model).__name__}) has no '{name}': a model needs two torch.nn.Modules, "
                f"'body' (input → feature vector) and 'head' (feature vector → logits){_how(model)}."
            )
        found.append(part)
    return found[0], found[1]


def _how(model: nn.Module) -> str:
    """How a module gets a body and a head, for the sentence that it has none."""
    if isinstance(model, nn.Sequential) and len(model) > 1:
        return ": kfl.SplitModel(model[:-1], model[-1]) if its last layer gives the logits"
    return "; kfl.SplitModel(body, head) makes one of them"


def tied(module: nn.Module) -> dict[str, str]:
    """The further names of weights that a module holds under several, each with the name that counts.

    That is the one in the body, where there is one, then the one in the head.

    >>> inner = nn.Linear(3, 3)
    >>> module = nn.Module()
    >>> module.body, module.head = nn.Sequential(inner, nn.ReLU(), inner), nn.Linear(3, 2)
    >>> tied(module)
    {'body.2.weight': 'body.0.weight', 'body.2.bias': 'body.0.bias'}
    """
    names: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    found = {}
    for alike in names.values():
        first = min(alike, key=lambda name: (not name.startswith("body."), not name.startswith("head.")))
        found.update({name: first for name in alike if name != first})
    return found


def with_ties(state: dict[str, Tensor], ties: dict[str, str], *, copies: bool = False) -> dict[str, Tensor]:
    """A state in which every further name of a weight is the one that counts, or its copy; names may have a prefix.

    >>> import torch
    >>> with_ties({"personal/b": torch.tensor(1), "personal/a": torch.tensor(2)}, {"b": "a"})
    {'personal/b': tensor(2), 'personal/a': tensor(2)}
    """
    if not ties:
        return state
    found = {}
    for name, value in state.items():
        prefix, slash, plain = name.rpartition("/")
        first = prefix + slash + ties.get(plain, plain)
        found[name] = value if first not in state or first == name else state[first]
        if copies and found[name] is not value:
            found[name] = found[name].clone()
    return found


@dataclass(frozen=True)
class Layer:
    """The parameters that one module inside a network owns itself, such as a convolution's weight and bias."""

    name: str
    """"body.0"."""
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    """Names in the model's state, "body.0.weight", and shapes."""

    @property
    def values(self) -> int:
        """How many numbers it has.

        >>> Layer("body.0", (("body.0.weight", (6, 3, 5, 5)), ("body.0.bias", (6,)))).values
        456
        """
        return sum(math.prod(shape) for _, shape in self.arrays)


@dataclass(frozen=True)
class SharedLayers:
    """What all networks of a fleet have in the same shape, so that it could be averaged."""

    stem: tuple[Layer, ...] = ()
    """Layers of the body from the input upwards, before the first that differs; all where the bodies are alike."""
    head: tuple[Layer, ...] = ()
    """Layers of the head; none unless all of them agree."""


def layers_of(part: nn.Module, prefix: str) -> list[Layer]:
    """The layers of a body or a head in the order in which the module lists them. Buffers are not among them.

    >>> [layer.name for layer in layers_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.BatchNorm1d(2)), "body")]
    ['body.0', 'body.2']
    """
    return _by_layer(part.named_parameters(prefix))


def further_state(model: nn.Module) -> list[Layer]:
    """Non-parameter buffers by layer: running means, variances and counters of a
    normalization, and further names of weights that are tied.

    >>> [layer.arrays for layer in further_state(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None)))]
    [(('1.running_mean', (2,)), ('1.running_var', (2,)), ('1.num_batches_tracked', ()))]
    """
    parameters, state = {name for name, _ in model.named_parameters()}, model.state_dict()
    return _by_layer((name, value) for name, value in state.items() if name not in parameters)


def _by_layer(arrays: Iterable[tuple[str, Tensor]]) -> list[Layer]:
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, value in arrays:
        found.setdefault(name.rpartition(".")[0], []).append((name, tuple(value.shape)))
    return [Layer(name, tuple(own)) for name, own in found.items()]


def shared_layers(models: Sequence[nn.Module]) -> SharedLayers:
    """The layers that all these networks have alike: how deep they agree from the input on, and their heads.

    >>> from kfl.models import cnn
    >>> shared = shared_layers([cnn(width=32), cnn(width=64)])
    >>> [layer.name for layer in shared.stem], [layer.values for layer in shared.head]
    (['body.0', 'body.3'], [650])
    """
    bodies, heads = zip(*(parts(model) for model in models), strict=True)
    stem = []
    for layers in zip(*(layers_of(body, "body") for body in bodies), strict=False):
        if len(set(layers)) > 1:
            break
        stem.append(layers[0])
    tops = {tuple(layers_of(head, "head")) for head in heads}
    return SharedLayers(tuple(stem), tops.pop() if len(tops) == 1 else ())


@dataclass(frozen=True)
class Convolution:
    """A square convolution without padding, then ReLU, then 2×2 max pooling."""

    name: str
    """Name of the layer in the model's state: "body.0"."""
    channels_in: int
    channels_out: int
    kernel: int
    height: int
    """Of its input."""
    width: int

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; a last odd row or column is dropped."""
        return (self.height - self.kernel + 1) // 2, (self.width - self.kernel + 1) // 2

    @property
    def inputs(self) -> int:
        """Numbers of one sample going in."""
        return self.channels_in * self.height * self.width

    @property
    def outputs(self) -> int:
        """Numbers of one sample coming out."""
        return self.channels_out * math.prod(self.pooled)


@dataclass(frozen=True)
class Dense:
    """A linear layer with a bias, and a ReLU after it where `rectified`."""

    name: str
    inputs: int
    outputs: int
    rectified: bool


@dataclass(frozen=True)
class Network:
    """All layers of a network in order. `dense` ends with the layer that outputs the feature."""

    convolutions: tuple[Convolution, ...]
    dense: tuple[Dense, ...]
    head: Dense
    input_shape: tuple[int, ...]

    @property
    def family(self) -> Hashable:
        """Equal for networks that differ in the widths of hidden dense layers only."""
        first, last = self.dense[0].inputs, self.dense[-1].outputs
        names = tuple((layer.name, layer.rectified) for layer in self.dense)
        return self.convolutions, names, first, last, self.head, self.input_shape

    @cached_property
    def dense_names(self) -> tuple[str, ...]:
        """Names of all dense layers, the head's last."""
        return (*(layer.name for layer in self.dense), self.head.name)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of all weights and biases."""
        names = (*(layer.name for layer in self.convolutions), *self.dense_names)
        return tuple(f"{name}.{part}" for name in names for part in ("weight", "bias"))


def read_network(module: nn.Module, input_shape: tuple[int, ...]) -> Network | None:
    """The layers of a module; None where it has anything else in it.

    Whatever is not certain is not read: a subclass of a layer, a hook, a shared layer, a layer without a bias.

    >>> from kfl.models import cnn
    >>> network = read_network(cnn(width=32), (3, 32, 32))
    >>> [layer.pooled for layer in network.convolutions], [layer.outputs for layer in network.dense]
    ([(14, 14), (5, 5)], [32, 64])
    """
    body, head = parts(module)
    if type(body) is not nn.Sequential or not (_is_plain(body) and _is_plain(head)) or _shares(module):
        return None
    layers = [(f"body.{name}", layer) for name, layer in body.named_children()]
    convolutions = _read_convolutions(layers, input_shape)
    rest = layers[3 * len(convolutions) :]
    size = input_shape
    if convolutions:
        size = (convolutions[-1].channels_out, *convolutions[-1].pooled)
    if rest and type(rest[0][1]) is nn.Flatten and rest[0][1].start_dim == 1 and rest[0][1].end_dim == -1:
        rest, size = rest[1:], (math.prod(size),)
    dense = _read_dense(rest) if len(size) == 1 else None
    ends = _read_dense([("head", head)])
    if dense is None or ends is None or dense[0].inputs != size[0]:
        return None
    return Network(convolutions, dense, ends[0], tuple(input_shape))


def _is_plain(module: nn.Module) -> bool:
    """Whether nothing is hooked to a module or its layers."""
    return not any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in module.modules()
    )


def _shares(module: nn.Module) -> bool:
    """Whether a layer or a parameter is used twice."""
    layers = [id(part) for _, part in module.named_modules(remove_duplicate=False)]
    values = [id(value) for _, value in module.named_parameters(remove_duplicate=False)]
    return len(set(layers)) < len(layers) or len(set(values)) < len(values)


def _read_convolutions(layers: Sequence[tuple[str, nn.Module]], shape: tuple[int, ...]) -> tuple[Convolution, ...]:
    found: list[Convolution] = []
    while len(shape) == 3 and len(layers) >= 3:
        (name, conv), (_, relu), (_, pool) = layers[:3]
        if not (type(conv) is nn.Conv2d and type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d):
            break
        if not (_is_plain_convolution(conv) and _is_plain_pooling(pool)):
            break
        found.append(Convolution(name, conv.in_channels, conv.out_channels, conv.kernel_size[0], shape[1], shape[2]))
        shape, layers = (conv.out_channels, *found[-1].pooled), layers[3:]
    return tuple(found)


def _is_plain_convolution(conv: nn.Conv2d) -> bool:
    return (
        conv.kernel_size[0] == conv.kernel_size[1]
        and conv.stride == (1, 1)
        and conv.padding in ((0, 0), 0, "valid")
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.bias is not None
    )


def _is_plain_pooling(pool: nn.MaxPool2d) -> bool:
    return (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


def _read_dense(layers: Sequence[tuple[str, nn.Module]]) -> tuple[Dense, ...] | None:
    found: list[Dense] = []
    for name, layer in layers:
        if type(layer) is nn.Linear and "bias" in layer._parameters and layer.bias is not None:
            found.append(Dense(name, layer.in_features, layer.out_features, rectified=False))
        elif type(layer) is nn.ReLU and found and not found[-1].rectified:
            found[-1] = replace(found[-1], rectified=True)
        else:
            return None
    return tuple(found) or None


def widest(networks: Sequence[Network]) -> Network:
    """The network of the same family whose hidden layers hold those of all the given ones."""
    sizes = [max(network.dense[i].outputs for network in networks) for i in range(len(networks[0].dense))]
    inputs = [networks[0].dense[0].inputs, *sizes[:-1]]
    dense = tuple(
        replace(layer, inputs=before, outputs=after)
        for layer, before, after in zip(networks[0].dense, inputs, sizes, strict=True)
    )
    return replace(networks[0], dense=dense)


def build_wide(module: nn.Module, network: Network) -> nn.Module:
    """A copy of a module whose dense layers have the sizes of the network; its weights mean nothing."""
    wide = copy.deepcopy(module)
    for layer in network.dense:
        parent, _, name = layer.name.rpartition(".")
        wide.get_submodule(parent).register_module(name, nn.Linear(layer.inputs, layer.outputs))
    return wide
