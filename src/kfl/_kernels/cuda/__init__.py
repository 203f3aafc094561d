"""Passes for cohorts, with convolutions as CUDA kernels, and computations recorded as CUDA graphs."""

from kfl._kernels.cuda.cohort import CohortKernels
from kfl._kernels.cuda.graphs import GraphRunner, Input
from kfl._kernels.cuda.network import Batch

__all__ = ["Batch", "CohortKernels", "GraphRunner", "Input"]
