"""The server app that Flower runs: `kfl.deploy.server:app`.

Its configuration in the Flower run: `config`, the path of the server's TOML file (`kfl.deploy.settings`), and `folder`,
its run folder. A new Flower run with the same folder goes on with the round after the last one that was finished.

Rounds, checkpoints, history and summary are the simulator's (`kfl.simulation.runner.Runner`), played with the devices
behind Flower (`kfl.deploy.flower_fleet`). The run folder is the simulator's too, with two more files:

    fleet.json      the run's name, who is in the fleet, who was refused, where the metrics are
    fleet.jsonl     one line per round: real times, bytes, how long each device took
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, RunFolderError
from kfl.deploy.courier import Courier
from kfl.deploy.flower import Context, Grid, ServerApp
from kfl.deploy.flower_fleet import FlowerFleet
from kfl.deploy.metrics import Metrics, round_sentence
from kfl.deploy.roster import Roster
from kfl.deploy.settings import ServerConfig
from kfl.runfolder import RoundLog, RunFolder, RunReader, describe_environment
from kfl.simulation.runner import Runner, RunOptions
from kfl.simulation.world import trace_facts

log = logging.getLogger("kfl")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the fleet from where it is to its last round."""
    logging.basicConfig(level=logging.INFO, format="kfl: %(message)s")
    paths = {name: str(context.run_config.get(name) or "") for name in ("config", "folder")}
    for name, path in paths.items():
        if not path:
            raise ConfigError(name, path, "a path in the configuration of the Flower run (flwr run -c)")
    serve(grid, ServerConfig.load(Path(paths["config"])), Path(paths["folder"]))


def serve(grid: Grid, config: ServerConfig, folder: Path) -> None:
    """Run a fleet into a run folder; a finished one is left as it is."""
    config.validate()
    target = RunFolder(folder)
    with target.locked():
        finished, facts = target.prepare(config.experiment) == "finished", _environment(config)
        target.refuse_other_files(facts)
        if finished:
            log.info("The run in %s is finished.", folder.name)
            return
        target.write_environment(facts)
        server = FleetServer(config, target, Courier(grid, config.fleet.poll_s))
        server.runner.start()
        server.runner.play()
        server.write_roster()
        log.info("The run is finished after %d rounds.", config.experiment.rounds)


class FleetServer:
    """A runner with real devices, and what a fleet leaves behind beside the simulator's run folder."""

    def __init__(self, config: ServerConfig, target: RunFolder, courier: Courier) -> None:
        self.config, self.target = config, target
        self.metrics = Metrics()
        port = config.fleet.metrics_port
        self.port = None if port is None else self.metrics.serve(port)
        before = _read_fleet(target.path)
        self.roster = Roster(config, run_name(before))
        self.roster.restore(before)
        self.write_roster()
        self.fleet = FlowerFleet(self.roster, courier, self._on_look)
        # A checkpoint after every round: what devices have learned cannot be played again.
        options = RunOptions(keep_models=False, checkpoint_s=0.0, on_round=self._on_round)
        identity = blake2b(target.identity().encode(), digest_size=16).hexdigest()
        self.runner = Runner(self.fleet, options, target, identity)

    def write_roster(self) -> None:
        """Write who is in the fleet."""
        self.target.write_fleet({"run": self.roster.run, "metrics_port": self.port, **self.roster.table()})

    def _on_look(self, changed: bool) -> None:
        if changed:
            self.write_roster()
        self.metrics.fleet(len(self.roster.members), len(self.fleet.present))

    def _on_round(self, entry: RoundLog) -> None:
        """Tell of a round that is on the disk, and rest before the next."""
        self.metrics.round(entry)
        self.target.append_fleet({**self.fleet.round_facts, "keep_s": time.perf_counter() - self.fleet.judged_s})
        rounds = self.config.experiment.rounds
        log.info("%s", round_sentence(entry, rounds))
        if entry.round + 1 < rounds:
            time.sleep(self.config.fleet.pause_s)


def run_name(fleet: Mapping[str, Any]) -> str:
    """The name of a run, by which devices know their models: made once, kept in the run folder's fleet.json."""
    name = fleet.get("run")
    return name if isinstance(name, str) and name else uuid.uuid4().hex


def _read_fleet(folder: Path) -> Mapping[str, Any]:
    try:
        return RunReader(folder).fleet()
    except RunFolderError:
        return {}


def _environment(config: ServerConfig) -> dict[str, Any]:
    return {
        **describe_environment(),
        "command": [],  # Flower's, with its tokens in it
        "process": os.getpid(),
        "dataset": {"name": "fleet", "note": "Each device of a real fleet has its own data."},
        "given_as_objects": ["dataset", "models"],  # by the devices
        "fleet": config.to_table()["fleet"],
        **trace_facts(config.experiment),
    }


__all__ = ["FleetServer", "app", "run_name", "serve"]
