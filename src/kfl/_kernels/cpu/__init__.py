"""Passes for one device on a CPU core: matrix products of PyTorch into reused buffers, compiled convolutions."""

from kfl._kernels.cpu.convolution import CompiledConvolutions
from kfl._kernels.cpu.device import DeviceKernels, Trainer, kind

__all__ = ["CompiledConvolutions", "DeviceKernels", "Trainer", "kind"]
