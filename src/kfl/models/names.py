"""Networks by name, as `--model` says them: `cnn`, `resnet8-16`, or several with commas between them.

Nothing here imports PyTorch, so that help texts and checks of a configuration are immediate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kfl.core.errors import ConfigError
from kfl.core.suggest import did_you_mean

PAPER_WIDTHS = (128, 192, 256, 320, 384)
"""The widths the paper draws from for devices with different models."""

WIDTHS: dict[str, tuple[int, ...]] = {
    "mlp": PAPER_WIDTHS,
    "cnn": PAPER_WIDTHS,
    "resnet8": (8, 16),
    "resnet18": (32, 64),
    "mobilenet": (8, 16),
    "sensor": (32, 64),
    "transformer": (32, 64),
    "linear": (1,),
}
"""The networks that have a name, and the widths that devices draw from where none are given."""

AUTO = "auto"
"""The word for: by the kind of sample."""

CNN_PIXELS = 16
"""Least height and width of images that the cnn takes."""
SENSOR_STEPS = 27
"""Shortest series that the sensor network takes: it divides time by 3 three times."""


def read_model(model: str) -> tuple[tuple[str, int | None], ...]:
    """The networks that a text names, each with its width where it says one; ConfigError for an unknown name.

    >>> read_model("resnet8-16, cnn"), read_model("my_models:build")
    ((('resnet8', 16), ('cnn', None)), (('my_models:build', None),))
    """
    pieces = [re.fullmatch(r"(.*?)(?:-(\d{1,9}))?", piece.strip(), re.DOTALL) for piece in model.split(",")]
    found = tuple((piece[1], None if piece[2] is None else int(piece[2])) for piece in pieces if piece)
    for name, width in found:
        if name == AUTO and (len(found) > 1 or width is not None):
            raise ConfigError("model", model, f"{AUTO} alone, or networks by their names: {', '.join(WIDTHS)}")
        if name not in (AUTO, *WIDTHS) and ":" not in name:
            known = f"one of {', '.join((AUTO, *WIDTHS))}, or package.module:function"
            hint = did_you_mean(name, WIDTHS)
            raise ConfigError("model", model, f"{known}, or several such as resnet8-16,cnn-128{hint}")
        if width == 0:
            raise ConfigError("model", model, "networks with a width of at least 1, such as resnet8-16")
    return found


def names_widths(model: str) -> bool:
    """Whether a text says the width of its networks itself, so that there are no others to draw from.

    >>> names_widths("resnet8-16"), names_widths("resnet8,cnn"), names_widths("resnet8")
    (True, True, False)
    """
    found = read_model(model)
    return len(found) > 1 or found[0][1] is not None


def default_widths(model: str) -> tuple[int, ...] | None:
    """The widths that devices draw from where none are given; None where only the data, or the text itself, says it.

    >>> default_widths("resnet8"), default_widths("auto"), default_widths("resnet8-16,cnn-128")
    ((8, 16), None, None)
    """
    if model == AUTO or names_widths(model):
        return None
    return WIDTHS.get(model, PAPER_WIDTHS)


def architectures(
    model: str, widths: Sequence[int] | None, input_shape: tuple[int, ...]
) -> tuple[tuple[str, int | None], ...]:
    """Name and width of every network that devices draw from; a width of None is the network's own default.

    `auto` is the sensor network for series (channels, time), the cnn for color images that are not tiny and the mlp
    for all else. With
    the paper's widths it is one of the paper's networks: so a run of an earlier version, which knew no other, stays
    what it was.

    Args:
        model: A name, several with commas, or `package.module:function`.
        widths: What devices draw from; None for each network's own.
        input_shape: Of one sample.

    >>> architectures("auto", None, (9, 128)), architectures("auto", (64,), (3, 32, 32))
    ((('sensor', 32), ('sensor', 64)), (('cnn', 64),))
    """
    if names_widths(model):
        if widths is not None:
            raise ConfigError("widths", tuple(widths), f"left out, as the model {model} says its widths itself")
        return read_model(model)
    if model == AUTO:
        series = len(input_shape) == 2 and input_shape[1] >= SENSOR_STEPS and tuple(widths or ()) != PAPER_WIDTHS
        colour = len(input_shape) == 3 and input_shape[0] == 3 and min(input_shape[1:]) >= CNN_PIXELS
        model = "sensor" if series else "cnn" if colour else "mlp"
    return tuple((model, width) for width in widths or default_widths(model) or ())
