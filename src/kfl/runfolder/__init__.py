"""The run folder: everything that was asked, what it ran on, and what came out. One package writes it and reads it.

    config.toml        the exact configuration; `kfl run --config config.toml` repeats the run
    environment.json   schema version, versions of kfl, Python and PyTorch, commit, hardware, data, execution plan
    rounds.jsonl       one line per round, appended as it happens
    columns/           what is too long for a line of it, one .npz file per round; devices.npz for devices.json alike
    trail.jsonl        knowledge and every device's accuracy after at most fifty of the rounds
    state/             while it runs: checkpoints, from which `kfl resume` continues
    devices.json       per device: rounds, energy, budget, accuracy, model, samples
    server.npz         the server's arrays at the end (for KFL the knowledge and which classes it covers)
    models/            what each device that ever trained holds at the end, one safetensors file per device
    summary.json       totals and final accuracy; its presence means the run is finished

The server of a real fleet adds fleet.json (who is in the fleet, who was refused) and fleet.jsonl (real times and sizes,
one line per round). A run of an earlier version may have a run folder local-only/, the same run with nothing shared.

Of a large fleet, `models/` has a file per thousand devices.

Every file is written whole or not at all. A line of a .jsonl file is written in one piece, and a torn last line (power
loss) is ignored when it is read. Folders of earlier versions are read as well.

Write with `RunFolder`, which also gives the `Checkpoints`. Read with `RunReader`, which never imports or executes what
a folder names; `load_run` gives the real Experiment with the History, and `kfl.report.read_run` arrays for pages.

>>> import kfl, tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp()) / "run"
>>> _ = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=(8,)), folder)
>>> reader = RunReader(folder)
>>> reader.finished, len(reader.rounds()), reader.server()["knowledge"].shape
(True, 2, (10, 64))
"""

from kfl.runfolder._checkpoint import Checkpoints
from kfl.runfolder._environment import describe_environment, given_as_objects
from kfl.runfolder._files import (
    JOB,
    LOCAL_ONLY,
    TRACKER_RUNS,
    cannot_write,
    find_runs,
    is_finished,
    is_held,
    is_run_folder,
    read_note,
    runs_in,
    write_note,
)
from kfl.runfolder._read import RunReader, load_experiment, load_run
from kfl.runfolder._snapshot import Snapshot, kept_rounds, snapshot
from kfl.runfolder._tensors import as_safetensors, device_name, require_safetensors
from kfl.runfolder._write import RunFolder
from kfl.simulation import History, Incident, RoundLog, RunState  # they were here until version 1.0

__all__ = [
    "JOB",
    "LOCAL_ONLY",
    "TRACKER_RUNS",
    "Checkpoints",
    "History",
    "Incident",
    "RoundLog",
    "RunFolder",
    "RunReader",
    "RunState",
    "Snapshot",
    "as_safetensors",
    "cannot_write",
    "describe_environment",
    "device_name",
    "find_runs",
    "given_as_objects",
    "is_finished",
    "is_held",
    "is_run_folder",
    "kept_rounds",
    "load_experiment",
    "load_run",
    "read_note",
    "require_safetensors",
    "runs_in",
    "snapshot",
    "write_note",
]
