"""The one made-up dataset of most tests: classes that lie apart, and noise around them."""

import numpy as np

import kfl


def toy_data(samples: int = 240, shape: tuple[int, ...] = (1, 5, 5), *, noise: float = 2.0) -> kfl.Dataset:
    """Four classes in turn, class c around c in every number; a part of the samples is kept for tests."""
    y = np.arange(samples) % 4
    x = noise * np.random.default_rng(0).normal(size=(samples, *shape)).astype(np.float32)
    return kfl.Dataset.from_arrays(x + y.reshape(-1, *(1 for _ in shape)), y)
