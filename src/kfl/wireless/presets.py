"""Ready-made cells. Two are the paper's; in the two others the uplink matters.

The paper's settings give a device so much band and power that an upload of 640 numbers costs about 1e-8 J
against 0.1 J or more for the computation. "nb-iot" is a cell where that small upload costs as much as the
computation; in "small-cell" it does not, but an upload of a whole model does. `tests/wireless` computes and
asserts both.
"""

from __future__ import annotations

from kfl.wireless.config import CellConfig

PRESETS: dict[str, CellConfig] = {
    # Section V of the paper: E_k = 0.1 T joule and T_max = 1 s for MNIST; all else is CellConfig's default.
    "paper-mnist": CellConfig(budget_j_per_round=0.1, deadline_s=1.0),
    # E_k = 0.5 T joule and T_max = 2 s for CIFAR-10.
    "paper-cifar10": CellConfig(budget_j_per_round=0.5, deadline_s=2.0),
    # Meters in cellars on one narrow-band carrier below 1 GHz.
    #   180 kHz: one NB-IoT carrier (3GPP TS 36.211, 10.1).
    #   23 dBm: NB-IoT power class 3 (3GPP TS 36.101, 6.2.2F).
    #   path loss 120.9 + 37.6 log10(d/km) dB at 900 MHz (3GPP TR 45.820, annex D), that is 8.1 dB at one metre,
    #   plus 30 dB into the building: a typical deep-indoor value, our choice within the range of that annex.
    #   noise −174 dBm/Hz plus a base station noise figure of 3 dB (TR 45.820, annex D).
    #   1000 m and 35 m: a macro cell with sites 1732 m apart, as in that annex, and its usual smallest distance.
    #   processor: a low-power microcontroller at 96–192 MHz with one floating-point operation per cycle that
    #   takes about 13 pJ per cycle at the top (data sheets of the class promise 4–6 µA/MHz at 1.8–3.3 V).
    #   Typical values, not measurements. 60 blocks of 3 kHz: close to the 3.75 kHz single tones of NB-IoT, but
    #   left out, since the paper's shares are real numbers.
    #   deadline and budget: our choice; 20 s lets the slowest processor finish 1.65 GFLOP with time to send.
    "nb-iot": CellConfig(
        bandwidth_hz=180e3,
        noise_dbm_per_hz=-171.0,
        radius_m=1000.0,
        reference_gain_db=-38.1,
        path_loss_exponent=3.76,
        min_distance_m=35.0,
        max_power_dbm=23.0,
        deadline_s=20.0,
        cpu_frequencies_hz=(96e6, 128e6, 160e6, 192e6),
        flops_per_cycle=1.0,
        power_coefficient=3.6e-28,
        budget_j_per_round=0.02,
    ),
    # Phones around a street-canyon small cell at 3.5 GHz.
    #   path loss 32.4 + 20 log10(3.5) + 31.9 log10(d/m) dB: UMi street canyon, no line of sight, the optional
    #   formula of 3GPP TR 38.901, table 7.4.1-1: 43.3 dB at one metre.
    #   radius 115 m: sites 200 m apart (TR 38.901, table 7.2-1); 10 m is its smallest distance.
    #   23 dBm: power class 3 (3GPP TS 38.101-1, 6.2.1). Noise figure 5 dB, typical for base stations.
    #   20 MHz: a typical allocation of which nothing else is sent here.
    #   processor: an efficiency core at 1.4–2 GHz, 8 FLOP per cycle (one 128-bit multiply-add on 32-bit floats),
    #   κ = 1e-28, another value common in the literature: about 0.6 W at 1.8 GHz. Typical values.
    #   deadline and budget: our choice.
    "small-cell": CellConfig(
        bandwidth_hz=20e6,
        noise_dbm_per_hz=-169.0,
        radius_m=115.0,
        reference_gain_db=-43.3,
        path_loss_exponent=3.19,
        min_distance_m=10.0,
        max_power_dbm=23.0,
        deadline_s=1.5,
        cpu_frequencies_hz=(1.4e9, 1.6e9, 1.8e9, 2.0e9),
        flops_per_cycle=8.0,
        power_coefficient=1e-28,
        budget_j_per_round=0.05,
    ),
}
