"""The workloads of `benchmarks.workloads` in Flower's simulation engine, with our loops' local work.

Flower needs an environment of its own; kfl is only read from the source tree:

    python -m venv /tmp/peers-flower
    /tmp/peers-flower/bin/pip install 'flwr[simulation]==1.41.0' torch==2.13.0 scipy
    PYTHONPATH=src:. /tmp/peers-flower/bin/python -m benchmarks.peers.flower_simulation [--workload W1] [--rounds 5]
    … --workload sensor --algorithm prototypes

One actor per core, each with one PyTorch thread, which is Flower's usual setting; no other was tried. Every actor
keeps the data it has read. In federated averaging a model travels to 10 clients and back and then to all 100 for
the test; with prototypes a client keeps its model in `context.state`, as Flower intends.
"""

from __future__ import annotations

import argparse
import os

from flwr.simulation import run_simulation

from benchmarks.peers.flower_app import ALGORITHM, ROUNDS, WORKLOAD, client, server
from benchmarks.peers.tasks import NAMES, Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=NAMES, default="W1")
    parser.add_argument("--algorithm", choices=("fedavg", "prototypes"), default="fedavg")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.workload not in ("W1", "W2") and options.algorithm == "fedavg":
        parser.error("--algorithm: models of several architectures cannot be averaged; choose prototypes")
    os.environ.update(
        {
            WORKLOAD: options.workload,
            ALGORITHM: options.algorithm,
            ROUNDS: str(options.rounds),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
    )
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=Task(options.workload).devices,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
