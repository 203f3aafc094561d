"""Ready-made cells, with the source of every figure.

Each number of a cell is written next to where it comes from, so none can be without. *Our choice* marks the ones that
no source gives. Two cells are the paper's, as printed, and `small-cell` uses the printed energy model too. The others
describe whole devices: a clock that can be slowed, and the circuits, amplifier and tail of a radio.

Amplifier efficiencies are for the whole transmitter: radiated power over the extra power drawn from the supply at full
power, compared with none.

>>> [name for name, cell in PRESETS.items() if cell.printed_model]
['paper-mnist', 'paper-cifar10', 'small-cell']
>>> PRESET_SOURCES["wifi"].figures["receive_power_w"].source
'the data sheet: 63 mA at 3.3 V'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfl.wireless.config import CellConfig


@dataclass(frozen=True)
class CitedValue:
    """One figure of a cell, and where it comes from."""

    value: float | tuple[float, ...]
    source: str
    """What it was taken or derived from, as Markdown; "our choice" where nothing says."""
    remark: str = ""
    """How it was derived, what else was measured, what follows from it."""


@dataclass(frozen=True)
class Preset:
    """A ready-made cell: what it is, and every field that differs from the paper's cell, with its source."""

    about: str
    figures: dict[str, CitedValue]

    @property
    def cell(self) -> CellConfig:
        """The configuration that these figures give."""
        values: dict[str, Any] = {name: figure.value for name, figure in self.figures.items()}
        return CellConfig(**values)


# ── Sources that several figures share ───────────────────────────────────────

_CHOICE = "our choice"
_SMALLEST_POWER = "[TS 36.101, table 6.3.2.1-1](https://itecspec.com/spec/3gpp-36-101-6-3-2-minimum-output-power)"
_POWER_CLASS = "power class 3 of 3GPP"
_TR_38_901 = "[TR 38.901](https://www.3gpp.org/dynareport/38901.htm)"
_PHONE_5G = "[Narayanan et al., SIGCOMM 2021](https://doi.org/10.1145/3452296.3472923)"
_PHONE_DATA = "https://github.com/SIGCOMM21-5G/artifact/tree/main"
_PROBES = f"[their RRC probes]({_PHONE_DATA}/RRC-Probe)"
_PIXEL = (
    "Kryo 475 Gold core of a Pixel 5: "
    "[freqbench, sm7250ab](https://github.com/kdrag0n/freqbench/blob/master/results/sm7250ab/new/results.csv)"
)
_NRF9160 = (
    "[nRF9160 product specification, modem current](https://infocenter.nordicsemi.com/topic/ps_nrf9160/_tmp/"
    "alta.nRF9160/autodita/CURRENT/parameters.id_current_modem.html)"
)
_NRF54 = (
    "[nRF54L15, CPU running](https://docs.nordicsemi.com/r/bundle/ps_nrf54l15/page/chapters/current_consumption/doc/"
    "current_consumption.html-unique_1713205267?contentId=LNkKLNvhXILtoNra1SPoCw)"
)
_USER = (
    "[measured by a user](https://github.com/boaks/zephyr-coaps-client/blob/0691af57934b6507fb43ba20c9d123cfc971ee31/"
    "docu/POWERCONSUMPTION.md)"
)
_HUANG = "[Huang et al., MobiSys 2012](https://web.eecs.umich.edu/~zmao/Papers/RRC4G_mobisys2012.pdf)"

# ── The paper's cells ────────────────────────────────────────────────────────

_MNIST = {
    "budget_j_per_round": CitedValue(0.1, "the paper, section V: E_k = 0.1 T joule"),
    "deadline_s": CitedValue(1.0, "the paper, section V"),
}
_CIFAR10 = {
    "budget_j_per_round": CitedValue(0.5, "the paper, section V: E_k = 0.5 T joule"),
    "deadline_s": CitedValue(2.0, "the paper, section V"),
}
_FREE_CLOCK = {
    "min_cpu_hz": CitedValue(
        300e6,
        "lowest operating point of the Kryo 475 Silver and Kryo 585 Silver cores: "
        "[freqbench, sm7250ab and sm8250](https://github.com/kdrag0n/freqbench/tree/master/results); the same in "
        "[Linux, sc7280.dtsi](https://github.com/torvalds/linux/blob/master/arch/arm64/boot/dts/qcom/sc7280.dtsi)",
        "the fastest clock of each device stays the paper's, 0.85 to 1.3 GHz",
    ),
}
_MODEM = {
    **_FREE_CLOCK,
    "static_power_w": CitedValue(
        0.08,
        "[freqbench, msm8917](https://github.com/kdrag0n/freqbench/tree/master/results/msm8917/main): power of one "
        "core at 960 to 1401 MHz, fitted by κf³ + p_s",
        "the Snapdragon 425, whose clocks are the paper's; the fit (κ = 1.5·10⁻²⁸, p_s = 0.082 W) is within 4 % of "
        "each of its four points. κ stays at our default for the paper, 10⁻²⁷",
    ),
    "max_power_dbm": CitedValue(
        23.0,
        "power class 3: [TS 36.101, 6.2.2](https://www.3gpp.org/dynareport/36101.htm), the default class ([TS "
        "38.101-3, 6.2B.1, note 2](https://itecspec.com/spec/3gpp-38-101-3-6-2b-1-ue-maximum-output-power-for-dc/))",
        "the paper prints 30 dBm; uploads of knowledge need 10 to 20",
    ),
    "min_power_dbm": CitedValue(-40.0, _SMALLEST_POWER, "a UE must be able to go as low as this"),
    "amplifier_efficiency": CitedValue(
        0.21,
        "derived from the nRF9160, as in `lte-m`",
        "no split into amplifier and circuits is published for the phone",
    ),
    "circuit_power_w": CitedValue(
        1.4,
        f"derived from [Narayanan et al., SIGCOMM 2021, data of figure 11]({_PHONE_DATA}/Data-Transfer-Power/"
        "MN-Transfer)",
        "Galaxy S20 Ultra, LTE uplink: 4.67 W at 22 Mb/s, less 2.36 W of the phone without traffic ([their baselines]"
        f"({_PHONE_DATA}/Power-Model/MN-Wild), mean of 32), less 0.2 W / 0.21 for the amplifier at full power. That it "
        "was at full power is our assumption",
    ),
    "receive_power_w": CitedValue(
        1.1, "the same data, downlink", "3.42 W at 52 Mb/s less 2.36 W; counts only where the broadcast takes time"
    ),
    "tail_power_w": CitedValue(
        0.178,
        f"{_PHONE_5G}, table 2, Verizon 4G",
        f"T-Mobile 4G: 0.066 W. Ten years earlier {_HUANG} measured 1.06 W for 11.576 s: one packet cost 12.76 J",
    ),
    "tail_s": CitedValue(
        10.2,
        f"{_PROBES}, `S20US_162_Verizon_4G.csv`",
        "up to 10.1 s of silence a packet is answered within 0.4 s, from 10.2 s on in up to 1.4 s: the connection is "
        "gone",
    ),
}

# ── A street: phones around a small cell ─────────────────────────────────────

_STREET_LOSS = (
    "32.4 + 20 log₁₀(3.5) + 31.9 log₁₀(d/m) dB: UMi street canyon without line of sight, optional formula "
    f"({_TR_38_901}, table 7.4.1-1)"
)
_STREET = {
    "bandwidth_hz": CitedValue(20e6, f"a typical allocation, with nothing else on it, {_CHOICE}"),
    "noise_dbm_per_hz": CitedValue(-169.0, f"thermal noise and a noise figure of 5 dB, {_CHOICE}"),
    "radius_m": CitedValue(115.0, f"{_TR_38_901}, table 7.2-1: sites 200 m apart"),
    "reference_gain_db": CitedValue(-43.3, _STREET_LOSS, "the loss at one meter"),
    "path_loss_exponent": CitedValue(3.19, _STREET_LOSS),
    "min_distance_m": CitedValue(10.0, f"{_TR_38_901}, table 7.2-1"),
    "max_power_dbm": CitedValue(23.0, _POWER_CLASS),
    "flops_per_cycle": CitedValue(8.0, _CHOICE, "one 128-bit multiply-add on 32-bit floats"),
}
_SMALL_CELL = {
    **_STREET,
    "deadline_s": CitedValue(1.5, _CHOICE),
    "cpu_frequencies_hz": CitedValue((1.4e9, 1.6e9, 1.8e9, 2.0e9), _CHOICE),
    "power_coefficient": CitedValue(1e-28, _CHOICE),
    "budget_j_per_round": CitedValue(0.05, _CHOICE),
}
_5G_PHONE = {
    **_STREET,
    "min_power_dbm": CitedValue(
        -40.0,
        "[TS 38.101-1, table 6.3.1-1](https://itecspec.com/spec/3gpp-38-101-1-6-3-1-minimum-output-power), 20 MHz",
    ),
    "deadline_s": CitedValue(
        5.0, _CHOICE, "a whole MLP (17.6 Mbit) of 99 % of the phones fits with a tenth of the band"
    ),
    "min_cpu_hz": CitedValue(652.8e6, f"lowest operating point of the {_PIXEL}"),
    "cpu_frequencies_hz": CitedValue(
        (1.4784e9, 1.728e9, 1.9008e9, 2.208e9),
        f'operating points of the {_PIXEL} ("verified")',
        "phones of different age and temperature: that their fastest clocks differ is our choice",
    ),
    "power_coefficient": CitedValue(
        5.3e-29,
        "the same core: power at eight clocks, 0.195 to 0.757 W, fitted by κf³ + p_s",
        "within 13 % of each",
    ),
    "static_power_w": CitedValue(
        0.18, "the same fit", "below (p_s / 2κ)^⅓ = 1.19 GHz slowing down costs more than it saves"
    ),
    "amplifier_efficiency": CitedValue(
        0.23,
        "the data of `circuit_power_w`: 2.02 W in 5,099 seconds of uplink, so 0.87 W more for 0.2 W radiated",
        "that it sent at full power is our assumption",
    ),
    "circuit_power_w": CitedValue(
        1.15,
        f"[Narayanan et al., T-Mobile SA 5G]({_PHONE_DATA}/Power-Model/MN-Wild/data-processed/cleaned-logs), mean of "
        "6,018 seconds of downlink, baseline subtracted",
        "what the radio draws while it works and does not radiate; that sending needs the same circuits is our "
        "assumption",
    ),
    "receive_power_w": CitedValue(1.15, "as `circuit_power_w`"),
    "tail_power_w": CitedValue(
        0.593,
        f"{_PHONE_5G}, table 2, T-Mobile SA",
        "0.25 W with non-standalone low-band 5G, 1.09 W with millimeter waves",
    ),
    "tail_s": CitedValue(
        10.0,
        f"{_PROBES}, `S20US_TMobile_SA.csv`",
        "80 ms up to 9 s of silence, 0.4 to 1.6 s from 10 s on",
    ),
    "budget_j_per_round": CitedValue(
        1.4,
        _CHOICE,
        "half a per cent of the battery of a Pixel 5 ([4080 mAh]"
        "(https://github.com/psybernetiq/device_google_redfin_tiramisu-pixel), at 3.85 V 56.5 kJ) in 200 rounds",
    ),
}

# ── A macro cell below 1 GHz: trackers and meters ────────────────────────────

_MACRO_LOSS = (
    "120.9 + 37.6 log₁₀(d/km) dB at 900 MHz, the macro cell of 3GPP ([TR 45.820]"
    "(https://www.3gpp.org/dynareport/45820.htm), TR 36.888): 8.1 dB at one meter"
)
_MACRO = {
    "noise_dbm_per_hz": CitedValue(-171.0, f"thermal noise and a noise figure of 3 dB, {_CHOICE}"),
    "radius_m": CitedValue(1000.0, _CHOICE, "a macro cell with sites 1732 m apart"),
    "path_loss_exponent": CitedValue(3.76, _MACRO_LOSS),
    "min_distance_m": CitedValue(35.0, _CHOICE, "the usual smallest distance of a macro cell"),
    "cpu_frequencies_hz": CitedValue(
        (128e6,),
        f"{_NRF54}: Cortex-M33 with a floating-point unit",
        "one clock: the data sheet says nothing about what a slower one draws",
    ),
    "flops_per_cycle": CitedValue(1.0, _CHOICE),
    "power_coefficient": CitedValue(
        3.7e-27,
        "the same: 2.6 mA at 3 V, so 61 pJ per cycle at 128 MHz",
        "all of it counts as dynamic, which makes no difference with a fixed clock",
    ),
    "budget_j_per_round": CitedValue(
        0.18,
        _CHOICE,
        "1 % of [the 5 Wh battery of TR 45.820](http://www.techplayon.com/"
        "iot-device-battery-life-10-years-how-it-is-possible-battery-life-calculation-for-nb-iot-device/) in 1,000 "
        "rounds",
    ),
}
_LTE_M = {
    **_MACRO,
    "bandwidth_hz": CitedValue(
        1.08e6,
        "six resource blocks: [LTE-M, features](https://www.rfwireless-world.com/Tutorials/LTE-M-tutorial.html)",
    ),
    "reference_gain_db": CitedValue(-23.1, _MACRO_LOSS, "and 15 dB for a wall, our choice"),
    "max_power_dbm": CitedValue(23.0, f"{_POWER_CLASS}, and the power of the data sheet of `circuit_power_w`"),
    "min_power_dbm": CitedValue(-40.0, _SMALLEST_POWER),
    "deadline_s": CitedValue(30.0, _CHOICE, "1.65 GFLOP take 12.9 s"),
    "amplifier_efficiency": CitedValue(
        0.21,
        "[nRF9160 hardware verification, power](https://infocenter.nordicsemi.com/topic/nwp_034/WP/nwp_034/"
        "nwp_034_pwr_consumption.html): peaks of about 300 mA at full power",
        "0.2 W for (300 − 45) mA · 3.7 V. The 105 mA that the specification gives for 23 dBm then mean that the modem "
        "sends 24 % of the time, which is plausible for half duplex",
    ),
    "circuit_power_w": CitedValue(
        0.17,
        f"{_NRF9160}: Cat-M1, 45 mA at 0 dBm; at [3.7 V](https://devzone.nordicsemi.com/power/w/opp/4/guidelines-lte)",
        "1 mW radiated: nearly all of it is circuits",
    ),
    "receive_power_w": CitedValue(0.17, "as `circuit_power_w`"),
    "connect_energy_j": CitedValue(
        0.105, f"{_NRF9160}: one tracking area update from power saving mode, SIM card included, 1.5 s"
    ),
    "tail_power_w": CitedValue(
        0.042,
        f"{_USER}: 200 bytes there and back cost 0.55 J in all (22 s at 5 mA, 5 V), less 0.105 J for connecting, over "
        "10.6 s",
        "so one small message costs what was measured",
    ),
    "tail_s": CitedValue(
        10.6,
        f'{_USER}: "Released: 10643 ms", T-Mobile Germany',
        "set by the network: [5 s to 60 s](https://github.com/nrfconnect/sdk-nrf/pull/21280)",
    ),
}
_NB_IOT = {
    **_MACRO,
    "bandwidth_hz": CitedValue(
        180e3,
        "one NB-IoT carrier: [TS 36.521-1, 5.4.1F]"
        "(https://itecspec.com/spec/3gpp-36-521-1-5-4-1f-channel-spacing-for-ue-category-nb1-and-nb2/)",
        "single tones of 3.75 kHz would be 48 resource blocks; left out, since the paper's shares are real numbers",
    ),
    "reference_gain_db": CitedValue(-38.1, _MACRO_LOSS, "and 30 dB into a cellar, our choice"),
    "max_power_dbm": CitedValue(
        23.0,
        "power class 3: [TS 36.101, table 6.2.5F-1]"
        "(https://itecspec.com/spec/3gpp-36-101-6-2-5f-configured-transmitted-power-for-category-nb1-and-nb2)",
    ),
    "min_power_dbm": CitedValue(-40.0, "the range of that class, as `max_power_dbm`"),
    "deadline_s": CitedValue(
        60.0,
        _CHOICE,
        "the CNN's weights (2 Mbit) of a third of the meters fit with a tenth of the band; the MLP's (17.6 Mbit) never "
        "do",
    ),
    "amplifier_efficiency": CitedValue(
        0.49,
        "the module of `circuit_power_w`: 167 mA at 23 dBm",
        "0.2 W for (167 − 54) mA · 3.6 V; one tone has a constant envelope, which suits an amplifier",
    ),
    "circuit_power_w": CitedValue(
        0.19,
        "[M5311 module](https://docs.m5stack.com/zh_CN/module/nb-iot): 54 mA receiving, at 3.6 V (a lithium cell, our "
        "choice)",
        f"the {_NRF9160} agrees: 35 mA at 0 dBm and 3.7 V on average while it is on two thirds of the time",
    ),
    "receive_power_w": CitedValue(0.19, "as `circuit_power_w`"),
    "connect_energy_j": CitedValue(
        0.55,
        f"{_NRF9160}, Cat-NB1: one tracking area update at 23 dBm, 2.7 s",
        f"0.27 J for a whole exchange in good coverage, {_USER}; these meters are in cellars",
    ),
    "tail_power_w": CitedValue(0.19, "the receiver is on: as `receive_power_w`"),
    "tail_s": CitedValue(1.0, f"{_USER}, with release assistance", "without: 5 s to 60 s, set by the network"),
}

# ── Microcontrollers around an access point ──────────────────────────────────

_INDOOR_LOSS = (
    "32.4 + 20 log₁₀(2.4) + 31.9 log₁₀(d/m) dB: indoor office without line of sight, optional formula "
    f"({_TR_38_901}, table 7.4.1-1)"
)
_WIFI = {
    "bandwidth_hz": CitedValue(20e6, "one channel of 802.11n at 2.4 GHz, as in the data sheet of `max_power_dbm`"),
    "noise_dbm_per_hz": CitedValue(-167.0, f"thermal noise and a noise figure of 7 dB, {_CHOICE}"),
    "radius_m": CitedValue(50.0, _CHOICE),
    "reference_gain_db": CitedValue(-40.0, _INDOOR_LOSS, "valid from 1 m to 86 m"),
    "path_loss_exponent": CitedValue(3.19, _INDOOR_LOSS),
    "max_power_dbm": CitedValue(
        19.5,
        "ESP32-S2-WROOM & ESP32-S2-WROOM-I Datasheet, version 1.1, table 7 ([Espressif's documents]"
        "(https://www.espressif.com/en/support/documents/technical-documents))",
    ),
    "min_power_dbm": CitedValue(
        2.0,
        "[esp_wifi_set_max_tx_power]"
        "(https://docs.esp-rs.org/esp-idf-hal/esp_idf_sys/fn.esp_wifi_set_max_tx_power.html): 2 to 20 dBm",
    ),
    "deadline_s": CitedValue(20.0, _CHOICE, "1.65 GFLOP take 6.9 s at 240 MHz and 10.3 s at 160 MHz"),
    "min_cpu_hz": CitedValue(80e6, "the data sheet, table 8"),
    "cpu_frequencies_hz": CitedValue((160e6, 240e6), "the data sheet, table 8"),
    "flops_per_cycle": CitedValue(1.0, _CHOICE, "the S2 itself has no floating-point unit; its successor S3 has"),
    "power_coefficient": CitedValue(
        2e-27,
        "the data sheet: 14, 17 and 22 mA at 3.3 V for 80, 160 and 240 MHz, fitted by κf³ + p_s",
        "within 4 % of each; measured with an idle cache, so training draws more",
    ),
    "static_power_w": CitedValue(
        0.046,
        "the same fit",
        "below (p_s / 2κ)^⅓ = 226 MHz slowing down costs more than it saves: the free clock is worth next to nothing "
        "here",
    ),
    "amplifier_efficiency": CitedValue(
        0.19,
        "the data sheet: peaks of 310, 220 and 200 mA at 3.3 V for 19.5, 15 and 13 dBm, fitted by p/η + p_c",
        "within 3 mW of each",
    ),
    "circuit_power_w": CitedValue(
        0.56,
        "the same fit",
        "for a laptop's card [Halperin et al., HotPower 2010, as quoted by ns-3]"
        "(https://gitlab.com/nsnam/ns-3-dev/-/blob/master/src/wifi/model/wifi-radio-energy-model.h) measured 1.14 W "
        "sending and 0.94 W receiving",
    ),
    "receive_power_w": CitedValue(0.21, "the data sheet: 63 mA at 3.3 V"),
    "connect_energy_j": CitedValue(
        0.04,
        f"{_HUANG}: one packet over Wi-Fi, waking and tail included",
        "against 12.76 J over LTE in the same paper; so there is no `tail_s`",
    ),
    "budget_j_per_round": CitedValue(0.05, _CHOICE, "less than half a participation of the default run"),
}

PRESET_SOURCES: dict[str, Preset] = {
    "paper-mnist": Preset("the paper's section V, MNIST", _MNIST),
    "paper-cifar10": Preset("the paper's section V, CIFAR-10", _CIFAR10),
    "paper-mnist-free-clock": Preset(
        "the paper's MNIST cell, with a clock that can be slowed", {**_MNIST, **_FREE_CLOCK}
    ),
    "paper-cifar10-free-clock": Preset(
        "the paper's CIFAR-10 cell, with a clock that can be slowed", {**_CIFAR10, **_FREE_CLOCK}
    ),
    "paper-mnist-modem": Preset("the paper's MNIST cell, with a phone's processor and LTE modem", {**_MNIST, **_MODEM}),
    "paper-cifar10-modem": Preset(
        "the paper's CIFAR-10 cell, with a phone's processor and LTE modem", {**_CIFAR10, **_MODEM}
    ),
    "small-cell": Preset("phones around a street's cell, to upload whole models", _SMALL_CELL),
    "nb-iot": Preset("meters in cellars on one narrow-band carrier", _NB_IOT),
    "lte-m": Preset("trackers and sensors behind one wall, on six resource blocks", _LTE_M),
    "5g-phone": Preset("the street of small-cell, with a measured phone", _5G_PHONE),
    "wifi": Preset("microcontrollers with Wi-Fi in a building", _WIFI),
}
"""Every ready-made cell, figure by figure."""

PRESETS: dict[str, CellConfig] = {name: preset.cell for name, preset in PRESET_SOURCES.items()}
"""Ready-made cells by the word that selects one: `kfl run --radio nb-iot`."""
