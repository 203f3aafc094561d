"""Scattering against kymatio's numbers, and the projection against a fit made here.

`kymatio-0.3.npz` holds random images and `Scattering2D(J=2, L=8)` of them, from kymatio 0.3.0 in an environment of its
own: the package no longer imports with today's SciPy.
"""

import io
import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from kfl.core.errors import ConfigError, DataError
from kfl.encoders._dead_leaves import dead_leaves
from kfl.encoders._scattering_transform import scattering
from kfl.encoders.scattering import Scattering, coefficients, fit_projection

REFERENCE = np.load(Path(__file__).with_name("kymatio-0.3.npz"))


@pytest.mark.parametrize("size", ["16x20", "28x28"])
def test_scattering_is_kymatios(size):
    found = scattering(torch.from_numpy(REFERENCE[f"images_{size}"]))
    expected = REFERENCE[f"scattered_{size}"]
    assert found.shape == expected.shape
    # Their filters are summed in single precision.
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=2e-5)


def test_scattering_of_a_shifted_image_is_nearly_that_of_the_image():
    """The low-pass filter forgets where within 4 pixels something is; the pixels themselves change far more."""
    image = torch.from_numpy(dead_leaves(1, 1, 40, 40)[0])
    one, other = image[:, :32, :32], image[:, 1:33, 1:33]
    change = (coefficients(one[None]) - coefficients(other[None])).norm() / coefficients(one[None]).norm()
    assert change < 0.1 < (one - other).norm() / one.norm()


def test_projection_of_the_package_is_what_its_script_fits():
    """To half precision; of 300 images instead of 3,000, so only that the leading directions span the same space."""
    name = "scattering-1x28x28.npz"
    with np.load(io.BytesIO((resources.files("kfl.encoders") / "projections" / name).read_bytes())) as kept:
        directions = kept["directions"].astype(float)
    with np.load(io.BytesIO(fit_projection((1, 28, 28), images=300))) as fitted:
        mine = fitted["directions"].astype(float)
    assert directions.shape == mine.shape == (256, 81 * 16)
    first, second = (np.linalg.qr(one[:20].T)[0] for one in (directions, mine))
    assert np.linalg.svd(first.T @ second)[1].mean() > 0.8
    assert np.linalg.svd(first.T @ np.linalg.qr(np.random.default_rng(0).normal(size=first.shape))[0])[1].mean() < 0.2


def test_a_shorter_encoding_is_the_beginning_of_a_longer_one():
    images = torch.from_numpy(dead_leaves(3, 3, 32, 32))
    torch.testing.assert_close(Scattering(64).encode(images), Scattering().encode(images)[:, :64], rtol=1e-5, atol=1e-5)


def test_numbers_of_drawn_images_are_white():
    """0.9 λ + 0.1 λ̄ in the denominator leaves variances below 1, nearly 1 in the leading directions."""
    images = torch.from_numpy(dead_leaves(400, 1, 28, 28))
    variance = Scattering(16).encode(images).var(0)
    assert 0.6 < float(variance.min()) < float(variance.max()) < 1.6


@pytest.mark.parametrize(
    ("encoder", "shape", "message"),
    [
        (Scattering(), (6, 128), r"images .* at least 8 × 8 pixels, but samples here have the shape \(6, 128\)"),
        (Scattering(), (1, 7, 28), "at least 8 × 8"),
        (Scattering(257), (3, 32, 32), "scattering with at most 256"),
    ],
)
def test_scattering_refuses_what_it_cannot_encode(encoder, shape, message):
    with pytest.raises((ConfigError, DataError), match=message):
        encoder.size(shape)


def test_flops_are_those_of_transforms_filters_and_products_of_matrices():
    """Exact: 32 × 32 is padded to 40 × 40; a transform of N numbers takes 4 N log₂ N, of real ones half of it."""
    pixels, quarter = 1600, 400
    large, small = 4 * pixels * math.log2(pixels), 4 * quarter * math.log2(quarter)
    transforms = large / 2 + 8 * (large + large / 2) + (8 + 64) * small
    filters = 2 * pixels * (8 + 8 + 64)
    low_pass = 9 * (4 * 40 * 40 + 4 * 40 * 4) + 72 * (4 * 20 * 20 + 4 * 20 * 4)
    assert Scattering().flops((1, 32, 32)) == pytest.approx(transforms + filters + low_pass + 81 * 16 * 256)
    assert Scattering().flops((3, 32, 32)) == pytest.approx(3 * Scattering().flops((1, 32, 32)))
