"""The server app that Flower runs: `kfl_fleet.server.app:app`.

Its configuration in the Flower run: `config`, the path of the server's TOML file (`kfl_fleet.settings`), and `folder`,
its run folder. A new Flower run with the same folder goes on with the round after the last one that was finished.

Rounds, checkpoints, history and summary are the simulator's (`kfl.runner.Runner`), played with the devices
behind Flower (`kfl_fleet.server.fleet`). The run folder is the simulator's too, with four more files:

    asked.json      the round in which devices are asked, and who was there, in case it must be played again
    fleet.json      the run's name, who is in the fleet, who was refused, where the metrics are
    fleet.jsonl     one line per round: real times, bytes, how long each device took, privacy spent
    server.log      what the server said
"""

from __future__ import annotations

import os
import time
import uuid
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.refusals import describe, stored_refusal
from kfl.runfolder import RunFolder, RunReader, describe_environment
from kfl.runner import Runner, RunOptions
from kfl.simulation import RoundLog
from kfl.simulation.world import trace_facts
from kfl_fleet._flower.names import Context, Grid, ServerApp
from kfl_fleet.logs import SERVER_LOG, logging_into, note, start_logging, warn
from kfl_fleet.messages.records import FleetRecord, RoundFacts, read_facts, read_fleet, read_run_name
from kfl_fleet.retry import Clock
from kfl_fleet.server.fleet import FlowerFleet
from kfl_fleet.server.messaging import Courier
from kfl_fleet.server.metrics import Metrics, round_sentence
from kfl_fleet.server.roster import Roster
from kfl_fleet.server.tally import problems
from kfl_fleet.settings import ServerConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the fleet from where it is to its last round."""
    paths = {name: str(context.run_config.get(name) or "") for name in ("config", "folder")}
    for name, path in paths.items():
        if not path:
            raise ConfigError(name, path, "a path in the configuration of the Flower run (flwr run -c)")
    config = ServerConfig.load(Path(paths["config"]))
    start_logging(config.fleet.log_format)
    serve(grid, config, Path(paths["folder"]))


def serve(grid: Grid, config: ServerConfig, folder: Path, clock: Clock | None = None) -> None:
    """Run a fleet into a run folder; a finished one is left as it is."""
    config.validate()
    target = RunFolder(folder)
    with target.locked():
        finished, facts = target.prepare(config.experiment) == "finished", _environment(config)
        target.refuse_other_files(facts)
        if finished:
            note("run_finished", f"The run in {folder.name} is finished.")
            return
        target.write_environment(facts)
        with logging_into(folder / SERVER_LOG, config.fleet.log_format):
            server = FleetServer(config, target, Courier(grid, config.fleet.poll_s, clock or Clock()))
            server.runner.start()
            server.show_standing()
            server.runner.play()
            server.write_roster()
            rounds = config.experiment.rounds
            note("run_finished", f"The run is finished after {rounds} rounds.", rounds=rounds)


class FleetServer:
    """A runner with real devices, and what a fleet leaves behind next to the simulator's run folder."""

    def __init__(self, config: ServerConfig, target: RunFolder, courier: Courier) -> None:
        self.config, self.target = config, target
        before = _read_fleet(target.path)
        self.roster = Roster(config, before.run or uuid.uuid4().hex, clock=courier.clock)
        self.roster.restore(before)
        self.fleet = FlowerFleet(self.roster, courier, self._on_look, target)
        self.metrics = Metrics(config)
        self._capped: set[int] = set()
        """Devices whose capped weight the log has a line about."""
        self.known = self._replay()
        self.port = self.metrics.serve()
        self.write_roster()
        # A checkpoint after every round: what devices have learned cannot be played again.
        options = RunOptions(keep_models=False, checkpoint_s=0.0, on_round=self._on_round, keep_rounds=False)
        identity = blake2b(target.identity().encode(), digest_size=16).hexdigest()
        self.runner = Runner(self.fleet, options, target, identity)

    def write_roster(self) -> None:
        """Write who is in the fleet."""
        self.target.write_fleet({"run": self.roster.run, "metrics_port": self.port, **self.roster.table()})

    def _replay(self) -> int:
        """Count what earlier processes of this server did; how many rounds that were."""
        reader = RunReader(self.target.path)
        entries, facts = reader.whole_rounds(), read_facts(reader)
        for entry in entries:
            self.fleet.privacy.count(entry)
            self.metrics.round(entry, facts.get(entry.round, RoundFacts()))
        return len(entries)

    def _on_look(self, changed: bool) -> None:
        if changed:
            self.write_roster()
        self.metrics.fleet(self.roster.members, self.fleet.present, len(self.roster.refused))

    def _on_round(self, entry: RoundLog) -> None:
        """Tell of a round that is on the disk, and rest before the next."""
        if new := entry.round >= self.known:  # not one that is played again after a crash
            self.fleet.privacy.count(entry)
        keep_s = time.perf_counter() - self.fleet.judged_s
        facts = {**self.fleet.round_facts, "keep_s": keep_s, **self._privacy(entry)}
        self.target.append_fleet(facts)
        if new:
            self.metrics.round(entry, RoundFacts.model_validate(facts))
        self.show_standing()
        self._tell(entry)
        if entry.round + 1 < self.config.experiment.rounds:
            self.fleet.courier.clock.sleep(self.config.fleet.pause_s)

    def _privacy(self, entry: RoundLog) -> dict[str, Any]:
        """What the devices of a round have spent up to now; empty where uploads have no noise."""
        members = {device: self.roster.members.get(device) for device in entry.devices}
        found = {d: self.fleet.privacy.record(d, m.profile) for d, m in members.items() if m is not None}
        spent = {str(device): record for device, record in found.items() if record is not None}
        return {"privacy": spent} if spent else {}

    def show_standing(self) -> None:
        """Tell metrics what every device has spent; possible once the devices are there."""
        members, budget_j, epsilon = self.roster.members, self.fleet.table.budget_j, {}
        for device, member in members.items():
            cost = self.fleet.privacy.spent(device, member.profile)
            if cost is not None:
                epsilon[device] = cost.epsilon
        self.metrics.standing({device: float(budget_j[device]) for device in members}, epsilon)

    def _tell(self, entry: RoundLog) -> None:
        """A line for every device that something went wrong with, and one for the round."""
        for incident in problems(entry):
            warn(
                "device_incident", incident.sentence, round=entry.round + 1, device=incident.device, code=incident.code
            )
        for cut in entry.clipped:
            if cut["code"] == "weight_capped" and cut["device"] not in self._capped:  # once: it may last for the run
                self._capped.add(cut["device"])
                sentence = f"Device {cut['device']} weighs less than it says: {describe(*stored_refusal(cut))}."
                note("weight_capped", sentence, round=entry.round + 1, device=cut["device"], code=cut["code"])
        note(
            "round_done",
            round_sentence(entry, self.config.experiment.rounds),
            round=entry.round + 1,
            rounds=self.config.experiment.rounds,
            status=entry.status.code,
            chosen=len(entry.devices),
            used=len(entry.used),
            accuracy=entry.accuracy,
            energy_j=entry.energy_j,
            seconds=entry.time_s,
        )


def _read_fleet(folder: Path) -> FleetRecord:
    """Return who was in the fleet; of a damaged file the run's name at most, and devices introduce themselves again."""
    reader = RunReader(folder)
    try:
        return read_fleet(reader) or FleetRecord()
    except RunFolderError:
        return FleetRecord(run=read_run_name(reader))


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


__all__ = ["FleetServer", "app", "serve"]
