"""What another user of the same machine can read of a fleet, and say to it.

    python -m studies.fleet.stranger --out docs/results/fleet-stranger.txt       (as root: it becomes that other user)

A fleet of two devices is started in a folder whose parent every user may enter, under umask 022 (`--umask 0` for the
worst). A child process without rights then tries everything that needs no flaw: read files, process arguments and
environments; ask the SuperLink's control, runtime and fleet interfaces, with the tokens it found and without; scrape
the metrics. Nothing it tries changes the fleet: where a request would, it is one that a server which lets it pass
answers with another error than one which asks who is there.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import ssl
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from kfl.algorithms import Kfl
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.local.fleet import LocalFleet

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

NOBODY = 65534
"""User and group without rights, on every Linux."""
KINDS = {
    "private keys": ("keys/*.key", "keys/device-?", "keys/*.secret"),
    "Flower's database (uploads, task tokens)": ("superlink.db*",),
    "logs": ("logs/*",),
    "the server's run folder": ("run/**/*",),
    "devices' models": ("devices/**/*.safetensors",),
    "Flower's home": ("flower/**/*",),
}
CONTROL = ("list-runs", "list-nodes", "register-node", "unregister-node", "start-run", "stop-run", "stream-logs")
RUNTIME = ("acquire-task", "get-nodes", "pull-messages", "push-messages", "pull-object")
FLEET = ("register-node", "activate-node", "pull-messages", "get-run", "get-fab")


def main() -> None:
    """Start, wait for a round, look as another user, and print one row for each thing tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--umask", type=lambda text: int(text, 8), default=0o022)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("Only root can become another user: run this as root.")
    os.umask(options.umask)
    with tempfile.TemporaryDirectory(prefix="kfl-stranger-") as place:
        Path(place).chmod(0o755)
        found = measure(Path(place) / "fleet")
    text = [
        f"python -m studies.fleet.stranger --umask {options.umask:03o}; what another user of the machine can do",
        "",
    ]
    text += [f"{name:<48}{value}" for name, value in found.items()]
    print("\n".join(text))
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")


def measure(folder: Path) -> dict[str, str]:
    """Rows of the table, for a fleet in `folder`."""
    experiment = Experiment(
        devices=2,
        distinct_classes=False,
        rounds=500,
        widths=(32,),
        algorithm=Kfl(local_steps=2),
        scheduler=SCHEDULERS["all"](),
    )
    with LocalFleet(folder, ServerConfig(experiment, FleetSettings(metrics_port=0, pause_s=1.0))) as fleet:
        next(fleet.rounds(patience_s=240))
        status = json.loads((fleet.run_folder / "fleet.json").read_text())
        facts: dict[str, Any] = {
            "folder": str(fleet.folder),
            "port": fleet.port,
            "metrics": status.get("metrics_port"),
            "pids": fleet.processes.members(),
        }
        found: dict[str, str] = json.loads(as_stranger(lambda: json.dumps(look(**facts))))
        cores = [core_limit(pid) for pid in fleet.processes.members()]
    dumping = [size for size in cores if size not in ("0", "1")]
    found["processes whose crash may write memory"] = f"{len(dumping)} of {len(cores)}"
    return found


def core_limit(pid: int) -> str:
    """The largest core file of a process; "0" where it is gone. With 1 not even a program in core_pattern gets one."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return next(line.split()[-2] for line in lines if line.startswith("Max core file size"))
    return "0"


# ── The other user ───────────────────────────────────────────────────────────


def as_stranger(action: Callable[[], str]) -> str:
    """What `action` returns in a child that has given up all rights; a fork, for it may not even read this Python."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with os.fdopen(theirs, "w") as pipe:
                pipe.write(action())
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("The other user came to grief; see above.")
    return text


def look(folder: str, port: int, metrics: int | None, pids: list[int]) -> dict[str, str]:
    """Try everything; runs as that user."""
    found = {}
    for name, patterns in KINDS.items():
        readable = [path for pattern in patterns for path in files(Path(folder), pattern)]
        found[f"read {name}"] = f"{len(readable)} files" if readable else "refused"
    tokens = [token for pid in pids for token in arguments(pid)]
    found["tokens in process arguments"] = str(len(tokens))
    found["environments"] = f"{sum(map(environment, pids))} of {len(pids)}"
    for api, names in (("control", CONTROL), ("runtime", RUNTIME), ("fleet", FLEET)):
        answers = {name: ask(port, f"/v1/{api}/{name}") for name in names}
        let = [name for name, status in answers.items() if status not in (401, 403)]
        found[f"{api} interface"] = (", ".join(f"{name} {answers[name]}" for name in let)) or "401 to all"
    if tokens:
        found["runtime interface, with a token found"] = str(ask(port, "/v1/runtime/get-nodes", tokens[0]))
    found["metrics"] = "no port" if metrics is None else str(ask(metrics, "/metrics", secure=False))
    return found


def files(folder: Path, pattern: str) -> Iterator[Path]:
    """Files of a pattern that this user can open."""
    try:
        paths = list(folder.glob(pattern))
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_file():
                path.open("rb").close()
                yield path


def arguments(pid: int) -> Iterator[str]:
    """Tokens in the arguments of a process: every user may read these."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        yield from (after for word, after in pairwise(words) if word == "--token")


def environment(pid: int) -> bool:
    """Whether the environment of a process can be read."""
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    return False


def ask(port: int, path: str, token: str | None = None, *, secure: bool = True) -> int:
    """The status of one request with an empty message."""
    headers: dict[str, Any] = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    if secure:
        headers |= dict(RuntimeVersionMetadata.from_local_component("flwr CLI").as_metadata())
    if token is not None:
        headers["flwr-task-token"] = token
    link: http.client.HTTPConnection
    if secure:
        anything = ssl._create_unverified_context()  # it has no reason to care who answers
        link = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=anything)
    else:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(link):
        link.request("POST" if secure else "GET", path, b"" if secure else None, headers)
        return link.getresponse().status


if __name__ == "__main__":
    main()
