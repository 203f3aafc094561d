"""Passes for one device on a CPU core: matrix products of PyTorch into reused buffers, compiled convolutions."""

from kfl._kernels.cpu.compiled_layers import CompiledLayers
from kfl._kernels.cpu.device import DeviceKernels, Trainer, kind

__all__ = ["CompiledLayers", "DeviceKernels", "Trainer", "kind"]
