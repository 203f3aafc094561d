"""Passes for one device on a CPU core: matrix products of PyTorch into reused buffers, compiled convolutions."""

from kfl._kernels.cpu.device import DeviceKernels, Trainer, kind
from kfl._kernels.cpu.layers import CompiledLayers

__all__ = ["CompiledLayers", "DeviceKernels", "Trainer", "kind"]
