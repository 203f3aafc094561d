"""Passes for cohorts, with convolutions as CUDA kernels, and computations recorded as CUDA graphs."""

from kfl._kernels.cuda.cohort import CohortKernels, Trainer
from kfl._kernels.cuda.graphs import GraphRunner, Input
from kfl._kernels.cuda.network import Batch
from kfl._kernels.cuda.samples import GivenTable, ResidentTable, Rows, Split, Steps, StoredTable, Table, mini_batches
from kfl._kernels.cuda.stack import Stack
from kfl._kernels.cuda.stacked_convolution import StackedConvolution

__all__ = [
    "Batch",
    "CohortKernels",
    "GivenTable",
    "GraphRunner",
    "Input",
    "ResidentTable",
    "Rows",
    "Split",
    "Stack",
    "StackedConvolution",
    "Steps",
    "StoredTable",
    "Table",
    "Trainer",
    "mini_batches",
]
