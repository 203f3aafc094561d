"""Fixed encoders: what all devices make of a sample before anything is learned, so that features mean the same on each.

An encoder is a view of the data. `--encoder scattering` turns every sample into 256 numbers once; every algorithm,
network and twin then stands on these. Nothing is trained, and with the encoders here nothing is downloaded: they follow
from formulas. What computing them costs a device is charged with its first participation, and so is a download.

    scattering    images: wavelet scattering, projected on what varies in drawn images and whitened
    statistics    series: mean, spread, quantiles and octave bands of each channel
    log-mel       sound: mel bands of six stretches of the clip, decorrelated by a cosine transform
    raw           the numbers of a sample as they are (a control)
    random        a random layer (a control)
    package.module:function   your own: a torch module that maps samples to numbers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.encoders.names import AUTO, ENCODERS, NONE, check_encoder, encoder_for

if TYPE_CHECKING:
    from kfl.encoders.base import Encoder
    from kfl.encoders.view import encoded, make_encoder

_LAZY = {"Encoder": "kfl.encoders.base", "encoded": "kfl.encoders.view", "make_encoder": "kfl.encoders.view"}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = ["AUTO", "ENCODERS", "NONE", "Encoder", "check_encoder", "encoded", "encoder_for", "make_encoder"]
