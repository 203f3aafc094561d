"""Encoders by name, as `--encoder` says them: `scattering`, `scattering-64`, `my_package.module:build`.

Nothing here imports PyTorch, so that help texts and checks of a configuration are immediate.
"""

from __future__ import annotations

import re

from kfl.core.errors import ConfigError
from kfl.core.suggest import did_you_mean

NONE = "none"
"""The word for samples as they are."""
AUTO = "auto"
"""The word for what suits the data, where the algorithm needs an encoder."""
ENCODERS: dict[str, str] = {
    "scattering": "kfl.encoders.scattering:Scattering",
    "statistics": "kfl.encoders.series:Statistics",
    "log-mel": "kfl.encoders.series:LogMel",
    "raw": "kfl.encoders.plain:Raw",
    "random": "kfl.encoders.plain:Random",
}
"""Encoders by the word that selects them, and the class of each: a new one is one line."""
SERIES_STEPS = 16
"""Shortest series that has octave bands worth the name."""


def check_encoder(name: str) -> tuple[str, int | None]:
    """Return an encoder's name and how many numbers it is to give; None for its own number.

    Raises:
        ConfigError: For a word that selects none.

    >>> check_encoder("scattering-64"), check_encoder("mine:build")
    (('scattering', 64), ('mine:build', None))
    """
    if name in (NONE, AUTO) or ":" in name:
        return name, None
    found = re.fullmatch(r"(.*?)(?:-(\d{1,6}))?", name, re.DOTALL)
    word, numbers = (found[1], found[2]) if found else (name, None)
    if word not in ENCODERS:
        known = f"one of {', '.join((NONE, AUTO, *ENCODERS))}, or package.module:function"
        raise ConfigError("encoder", name, known + did_you_mean(word, ENCODERS))
    if numbers is not None and int(numbers) < 1:
        raise ConfigError("encoder", name, f"a number of at least 1 behind the name, such as {word}-64")
    return word, None if numbers is None else int(numbers)


def encoder_for(input_shape: tuple[int, ...]) -> str:
    """Return the encoder that suits samples of a shape: what `auto` means where an algorithm needs one.

    >>> encoder_for((3, 32, 32)), encoder_for((6, 128)), encoder_for((9,))
    ('scattering', 'statistics', 'raw')
    """
    if len(input_shape) == 3 and min(input_shape[1:]) >= 8:
        return "scattering"
    if len(input_shape) == 2 and input_shape[1] >= SERIES_STEPS:
        return "statistics"
    return "raw"
