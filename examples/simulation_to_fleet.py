"""From simulation to a Flower fleet: the same experiment first in the simulator, then as processes that send messages.

    python examples/simulation_to_fleet.py [folder]

The fleet is a server and three devices on 127.0.0.1, with TLS and a key for each device. They hold what the simulated
devices hold, so round after round both must say the same. With `kfl deploy new` you then write the device function that
reads your own data, and put the same server and devices on several machines. It takes a minute or two, most of it
Flower starting processes. It needs the extras `fleet` and `data`.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import kfl
from kfl.scheduling import Lyapunov
from kfl.wireless import CellConfig
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.local.fleet import LocalFleet

EXPERIMENT = kfl.Experiment(
    dataset="mnist-5k",
    devices=3,
    rounds=2,
    widths=(32, 64, 96),  # three devices, different networks
    scheduler=Lyapunov(v=0.01),
    radio=CellConfig(bandwidth_hz=1e6),
)


def simulate(folder: Path) -> kfl.History:
    """Try it where it costs nothing: one process, seconds."""
    return kfl.run(EXPERIMENT, folder / "simulated")


def make_fleet(folder: Path) -> LocalFleet:
    """The same experiment for real devices: how long the server waits, how many must answer, and no cap on weights."""
    config = ServerConfig(EXPERIMENT, FleetSettings(deadline_s=120, quorum=0.5, largest_weight=1.0))
    return LocalFleet(
        folder / "fleet", config, device="kfl_fleet.device.simulated:device"
    )  # your own: "my_fleet.device:device"


def main(folder: Path) -> None:
    """Simulate, start the fleet, compare them round by round."""
    simulated = simulate(folder)
    with make_fleet(folder) as fleet:  # when the block ends, so do all its processes
        for expected, real in zip(simulated.rounds, fleet.rounds(), strict=True):
            print(
                f"round {real.round + 1}: devices {real.devices}, accuracy {real.accuracy:.1%} in {real.time_s:.1f} s"
            )
            print(f"  simulated: devices {expected.devices}, accuracy {expected.accuracy:.1%}")
    print(f"The fleet's run folder is {fleet.run_folder}: kfl report {fleet.run_folder} makes a page of it.")


if __name__ == "__main__":
    new = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-simulation-to-fleet"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else new)
