"""Ready-made cells. Every figure, its source and what follows from it: `docs/presets.md`.

Two cells are the paper's, as printed, and `small-cell` is printed too. The others describe whole devices: a clock that
may be slowed, circuits, amplifier and tail of a radio. What is not from a source is called our choice on that page.

>>> [name for name, cell in PRESETS.items() if cell.printed_model]
['paper-mnist', 'paper-cifar10', 'small-cell']
"""

from __future__ import annotations

from dataclasses import replace

from kfl.wireless.config import CellConfig

_MNIST = CellConfig(budget_j_per_round=0.1, deadline_s=1.0)  # Section V: E_k = 0.1 T joule, T_max = 1 s
_CIFAR10 = CellConfig(budget_j_per_round=0.5, deadline_s=2.0)  # E_k = 0.5 T joule, T_max = 2 s
_SLOWEST_HZ = 300e6  # the lowest operating point of phone cores

# Phones around a street-canyon cell at 3.5 GHz, with a processor and a radio as the printed model knows them. An upload
# of knowledge costs next to nothing here, one of a whole model as much as the computation.
_SMALL_CELL = CellConfig(
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
)

# Meters in cellars on one narrow-band carrier below 1 GHz, a microcontroller with one clock.
_NB_IOT = CellConfig(
    bandwidth_hz=180e3,
    noise_dbm_per_hz=-171.0,
    radius_m=1000.0,
    reference_gain_db=-38.1,
    path_loss_exponent=3.76,
    min_distance_m=35.0,
    max_power_dbm=23.0,
    min_power_dbm=-40.0,
    deadline_s=60.0,
    cpu_frequencies_hz=(128e6,),
    flops_per_cycle=1.0,
    power_coefficient=3.7e-27,
    amplifier_efficiency=0.49,
    circuit_power_w=0.19,
    receive_power_w=0.19,
    connect_energy_j=0.55,
    tail_power_w=0.19,
    tail_s=1.0,
    budget_j_per_round=0.18,
)


def _with_modem(cell: CellConfig) -> CellConfig:
    """One of the paper's cells, with the processor and the LTE modem of a phone."""
    return replace(
        cell,
        min_cpu_hz=_SLOWEST_HZ,
        static_power_w=0.08,
        max_power_dbm=23.0,
        min_power_dbm=-40.0,
        amplifier_efficiency=0.21,
        circuit_power_w=1.4,
        receive_power_w=1.1,
        tail_power_w=0.178,
        tail_s=10.2,
    )


PRESETS: dict[str, CellConfig] = {
    "paper-mnist": _MNIST,
    "paper-cifar10": _CIFAR10,
    "paper-mnist-free-clock": replace(_MNIST, min_cpu_hz=_SLOWEST_HZ),
    "paper-cifar10-free-clock": replace(_CIFAR10, min_cpu_hz=_SLOWEST_HZ),
    "paper-mnist-modem": _with_modem(_MNIST),
    "paper-cifar10-modem": _with_modem(_CIFAR10),
    "small-cell": _SMALL_CELL,
    "nb-iot": _NB_IOT,
    # Trackers and sensors behind one wall, on six resource blocks, with the same processor.
    "lte-m": replace(
        _NB_IOT,
        bandwidth_hz=1.08e6,
        reference_gain_db=-23.1,
        deadline_s=30.0,
        amplifier_efficiency=0.21,
        circuit_power_w=0.17,
        receive_power_w=0.17,
        connect_energy_j=0.105,
        tail_power_w=0.042,
        tail_s=10.6,
    ),
    # The small cell again, with the processor, the radio and the battery of a phone.
    "5g-phone": replace(
        _SMALL_CELL,
        min_power_dbm=-40.0,
        deadline_s=5.0,
        min_cpu_hz=652.8e6,
        cpu_frequencies_hz=(1.4784e9, 1.728e9, 1.9008e9, 2.208e9),
        power_coefficient=5.3e-29,
        static_power_w=0.18,
        amplifier_efficiency=0.23,
        circuit_power_w=1.15,
        receive_power_w=1.15,
        tail_power_w=0.593,
        tail_s=10.0,
        budget_j_per_round=1.4,
    ),
    # Microcontrollers with a radio of their own around an access point in a building.
    "wifi": CellConfig(
        bandwidth_hz=20e6,
        noise_dbm_per_hz=-167.0,
        radius_m=50.0,
        reference_gain_db=-40.0,
        path_loss_exponent=3.19,
        min_distance_m=1.0,
        max_power_dbm=19.5,
        min_power_dbm=2.0,
        deadline_s=20.0,
        min_cpu_hz=80e6,
        cpu_frequencies_hz=(160e6, 240e6),
        flops_per_cycle=1.0,
        power_coefficient=2e-27,
        static_power_w=0.046,
        amplifier_efficiency=0.19,
        circuit_power_w=0.56,
        receive_power_w=0.21,
        connect_energy_j=0.04,
        budget_j_per_round=0.05,
    ),
}
