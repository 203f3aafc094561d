"""Time and energy of a device in a round: the cost model of the paper's section II-C, as printed.

The functions take numbers or arrays and broadcast. SI units, linear gains.

    >>> float(compute_time(8e9, 1e9, 4.0)), float(compute_energy(8e9, 1e9, 4.0, 1e-27))
    (2.0, 2.0)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling.arrays import PerDevice
from kfl.scheduling.uplink import transmit_power
from kfl.wireless.channel import FloatArray

__all__ = [
    "broadcast_time",
    "compute_energy",
    "compute_time",
    "in_outage",
    "transmit_power",
    "uplink_rate",
    "upload_energy",
    "upload_time",
]


def _array(value: ArrayLike) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def compute_time(flops: ArrayLike, cpu_hz: ArrayLike, flops_per_cycle: ArrayLike) -> FloatArray:
    """T_L = τ D C / (f n), equation (10). `flops` is the whole work of a round, τ D C.

    Args:
        flops: τ D C.
        cpu_hz: f.
        flops_per_cycle: n.

    Returns:
        Seconds.
    """
    with np.errstate(over="ignore"):  # a clock beyond all bounds is infinitely fast
        return np.divide(_array(flops), _array(cpu_hz) * _array(flops_per_cycle))


def compute_energy(
    flops: ArrayLike, cpu_hz: ArrayLike, flops_per_cycle: ArrayLike, power_coefficient: ArrayLike
) -> FloatArray:
    """E_L = κ τ D C f² / n, equation (11). `flops` is the whole work of a round, τ D C.

    Args:
        flops: τ D C.
        cpu_hz: f.
        flops_per_cycle: n.
        power_coefficient: κ.

    Returns:
        Joules.
    """
    with np.errstate(over="ignore"):  # and costs infinitely much
        return np.asarray(_array(power_coefficient) * _array(flops) * _array(cpu_hz) ** 2 / _array(flops_per_cycle))


def uplink_rate(
    share: ArrayLike, power_w: ArrayLike, gain: ArrayLike, bandwidth_hz: PerDevice, noise_w_per_hz: PerDevice
) -> FloatArray:
    """r = θ B log2(1 + p h / (θ B N_0)) in bits per second; 0 where the share or the power is 0.

    Args:
        share: θ.
        power_w: p.
        gain: h.
        bandwidth_hz: B.
        noise_w_per_hz: N_0.

    >>> float(uplink_rate(0.5, 1.0, 3.0, 2.0, 1.0))
    2.0
    """
    band_hz = _array(share) * bandwidth_hz
    noise_w = band_hz * noise_w_per_hz
    signal_w = _array(power_w) * _array(gain)
    ratio = np.divide(signal_w, noise_w, out=np.zeros(np.broadcast(signal_w, noise_w).shape), where=noise_w > 0)
    return np.asarray(band_hz * np.log1p(ratio) / np.log(2.0))


def upload_time(payload_bits: ArrayLike, rate_bits_per_s: ArrayLike) -> FloatArray:
    """T_U = Q q / r, equation (12); infinite at rate 0, and 0 for an empty payload.

    Args:
        payload_bits: Q q.
        rate_bits_per_s: r.

    Returns:
        Seconds.
    """
    bits, rate = np.broadcast_arrays(_array(payload_bits), _array(rate_bits_per_s))
    time_s = np.where(bits > 0, np.inf, 0.0)
    np.divide(bits, rate, out=time_s, where=(rate > 0) & (bits > 0))
    return time_s


def upload_energy(power_w: ArrayLike, upload_time_s: ArrayLike) -> FloatArray:
    """E_U = p T_U, the left half of equation (13).

    Args:
        power_w: p.
        upload_time_s: T_U.

    Returns:
        Joules.
    """
    return np.asarray(_array(power_w) * _array(upload_time_s))


def in_outage(
    share: ArrayLike,
    power_w: ArrayLike,
    payload_bits: ArrayLike,
    upload_time_s: ArrayLike,
    true_gain: ArrayLike,
    bandwidth_hz: PerDevice,
    noise_w_per_hz: PerDevice,
) -> NDArray[np.bool_]:
    """True where the real channel is too weak for the allotted share, power and time: the upload is lost.

    The device does not know, sends for the whole allotted time and spends the energy. A relative 1e-9 is
    granted, since a device that knows its channel sends exactly as long as allowed.
    """
    rate = uplink_rate(share, power_w, true_gain, bandwidth_hz, noise_w_per_hz)
    return np.asarray(upload_time(payload_bits, rate) > _array(upload_time_s) * (1 + 1e-9))


def broadcast_time(bits: float, power_w: float, gain: ArrayLike, bandwidth_hz: float, noise_w_per_hz: float) -> float:
    """Time to send `bits` to all these devices at once over the whole band, at the weakest device's rate.

    The paper leaves this out (end of II-C). 0 when there is no device or nothing to send.
    """
    gains = np.atleast_1d(_array(gain))
    if gains.size == 0:
        return 0.0
    rate = uplink_rate(1.0, power_w, gains.min(), bandwidth_hz, noise_w_per_hz)
    return float(upload_time(bits, rate))
