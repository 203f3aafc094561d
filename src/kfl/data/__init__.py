"""Datasets, and their split over the devices of a fleet.

>>> import numpy as np
>>> data = Dataset.from_arrays(np.random.default_rng(0).random((200, 4)), np.arange(200) % 4)
>>> split = partition("shards", data.train_y, data.test_y, data.classes, devices=8, seed=0)
>>> len(split.train), sum(len(indices) for indices in split.train)
(8, 160)
>>> data.inputs("train", split.train[0]).shape
torch.Size([20, 4])
"""

from kfl.data.adjust import add_new_class, limit_samples, limit_tested
from kfl.data.dataset import Dataset
from kfl.data.local_data import LocalData, SharedSamples
from kfl.data.partition import Partition, can_be_distinct, partition
from kfl.data.registry import DATASETS, check_name, dataset_path, download, downloadable, load_dataset, short_name
from kfl.data.source import Download, RemoteFile, Source
from kfl.data.storage import Decoded, cached, resolve_cache_dir, resolve_data_dir

__all__ = [
    "DATASETS",
    "Dataset",
    "Decoded",
    "Download",
    "LocalData",
    "Partition",
    "RemoteFile",
    "SharedSamples",
    "Source",
    "add_new_class",
    "cached",
    "can_be_distinct",
    "check_name",
    "dataset_path",
    "download",
    "downloadable",
    "limit_samples",
    "limit_tested",
    "load_dataset",
    "partition",
    "resolve_cache_dir",
    "resolve_data_dir",
    "short_name",
]
