"""A dataset seen through an encoder: one of the kit, and a user's own."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.core.errors import ConfigError, DataError, ModelError
from kfl.data import Dataset
from kfl.encoders import ENCODERS, encoded, make_encoder
from kfl.encoders.series import LogMel, Statistics

SHAPES = {"scattering": (1, 16, 16), "statistics": (3, 64), "log-mel": (1, 4000), "raw": (5,), "random": (2, 6)}


class Doubling(nn.Module):
    """Two numbers of a sample, from one parameter."""

    def __init__(self, out=2):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2.0]))
        self.out = out

    def forward(self, x):
        return x.flatten(1)[:, : self.out] * self.factor


def build():
    return Doubling()


def build_wrong_shape():
    return nn.Identity()


def build_nothing():
    return "module"


def data_of(shape, seed=0):
    draw = np.random.default_rng(seed)
    return Dataset.from_arrays(draw.random((40, *shape)).astype(np.float32), np.arange(40) % 4, name="toy")


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_gives_as_many_finite_numbers_as_it_says_and_each_sample_its_own(name, tmp_path):
    data = data_of(SHAPES[name])
    encoder = make_encoder(name)
    view = encoded(data, name, tmp_path)
    assert view.train_x.shape == (len(data.train_y), encoder.size(data.input_shape))
    assert np.isfinite(view.train_x).all() and encoder.flops(data.input_shape) >= 0 and encoder.download_bits == 0
    # A sample's numbers do not depend on the others.
    alone = encoder.encode(data.unstandardized("train", [3]))
    np.testing.assert_allclose(alone.numpy()[0], view.train_x[3], rtol=1e-4, atol=1e-4)
    assert view.view.encoder == name and view.view.whitened == encoder.whitened
    assert (view.train_y == data.train_y).all() and view.classes == data.classes
    assert not np.allclose(view.train_x[0], view.train_x[1])


def test_an_encoding_is_read_again_and_made_anew_for_other_samples(tmp_path):
    data = data_of((3, 64))
    first = encoded(data, "statistics", tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == 1
    np.testing.assert_array_equal(encoded(data, "statistics", tmp_path).train_x, first.train_x)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    changed = data.train_x.copy()
    changed[17, 0, 3] += 1  # one number of one sample
    other = encoded(dataclasses.replace(data, train_x=changed), "statistics", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert not np.allclose(other.train_x[17], first.train_x[17])
    np.testing.assert_array_equal(np.delete(other.train_x, 17, 0), np.delete(first.train_x, 17, 0))


def test_an_own_module_encodes_and_its_download_is_charged(tmp_path):
    name = f"{__name__}:build"
    view = encoded(data_of((5,)), name, tmp_path)
    np.testing.assert_allclose(view.train_x, 2 * data_of((5,)).train_x[:, :2], rtol=1e-6)
    assert view.view.download_bits == 32 and not list(tmp_path.iterdir())


def build_network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))


def build_outside():
    class Outside(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.flatten(1).numpy() * 2)

    return Outside()


def build_outside_and_says_so():
    module = build_outside()
    module.flops = 123
    return module


def test_own_encoders_work_is_counted_as_that_of_networks_or_as_it_says():
    shape = (1, 8, 8)
    assert make_encoder(f"{__name__}:build_network").flops(shape) == 2 * 4 * 9 * 36 + 144 * 5 + 5
    assert make_encoder(f"{__name__}:build_outside_and_says_so").flops(shape) == 123
    with pytest.raises(ModelError, match="give the module an attribute `flops`"):
        make_encoder(f"{__name__}:build_outside").flops(shape)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("scatering", ConfigError, r"encoder is 'scatering', but must be .*did you mean scattering\?"),
        ("scattering-0", ConfigError, "at least 1 behind the name, such as scattering-64"),
        ("no_such_module:build", ConfigError, "encoder is 'no_such_module:build'.*No module named"),
        (f"{__name__}:build_nothing", ModelError, "returned str, but must return a torch.nn.Module"),
        (f"{__name__}:build_wrong_shape", ModelError, r"gives \(2, 3, 64\) for two samples, but must give \(2, d\)"),
        ("scattering", DataError, "takes images"),
        ("statistics-7", ConfigError, "encoder is 'statistics-7', but must be statistics"),
    ],
)
def test_encoded_refuses_in_one_sentence(name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        encoded(data_of((3, 64)), name, tmp_path)


def test_statistics_know_the_octave_of_a_wave():
    steps = torch.arange(128) / 128
    waves = torch.stack([torch.sin(2 * torch.pi * f * steps) for f in (1, 3, 6, 12, 25, 50)])
    bands = Statistics().encode(waves[:, None])[:, 5:]
    assert bands.argmax(1).tolist() == [0, 1, 2, 3, 4, 5]


def test_log_mel_does_not_hear_where_in_the_recording_a_sound_is_or_how_long_the_silence():
    draw = torch.Generator().manual_seed(0)
    sound = torch.randn(2000, generator=draw) * torch.hann_window(2000)
    early, late = torch.zeros(1, 1, 8000), torch.zeros(1, 1, 8000)
    early[0, 0, 800:2800], late[0, 0, 4800:6800] = sound, sound
    one, other = LogMel().encode(early), LogMel().encode(late)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


def test_any_algorithm_learns_on_an_encoder_and_pays_for_it_once():
    common = {"devices": 4, "rounds": 3, "model": "linear", "radio": "paper-mnist", "samples_per_device": 20}
    common["scheduler"] = kfl.AllDevices()
    plain = kfl.run(kfl.Experiment(algorithm="local", encoder="none", **common))
    random = kfl.run(kfl.Experiment(algorithm="local", encoder="random-784", **common))
    flops = make_encoder("random-784").flops((1, 28, 28))
    # The same network on as many numbers: rounds differ by the encoder in the first one, and then not at all.
    spent = [[log.compute_energy_j[0] for log in one.rounds] for one in (plain, random)]
    assert spent[1][1:] == pytest.approx(spent[0][1:])
    per_flop = spent[0][0] / (5 * 20 * 7840)
    assert spent[1][0] - spent[0][0] == pytest.approx(per_flop * 20 * flops, rel=0.01)
