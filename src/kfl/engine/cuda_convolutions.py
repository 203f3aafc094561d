"""stub"""
from __future__ import annotations
import torch
from kfl.engine.convolutions import Convolutions
from kfl.engine.arithmetic import Arithmetic
def refuse_kernels(arithmetic: Arithmetic, where: torch.device) -> str | None:
    return "they run on NVIDIA GPUs only"
KernelConvolutions = Convolutions
