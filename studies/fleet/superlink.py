"""Flower's own SuperLink in this process, behind kfl's limits: what a member sends is taken or refused by real code."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import kfl_fleet._flower.names  # noqa: F401  # imports Flower without the warnings of its parts
from kfl_fleet._flower import limits
from kfl_fleet._flower.fleet_api import FleetApi
from kfl_fleet.project.certificates import make_authority, make_device_key, make_server_certificate
from kfl_fleet.server.messaging import Courier


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink with one run, and members with keys."""

    address: str
    authority: Path
    keys: list[Path]
    nodes: list[int]
    run: int
    state: Any
    """Flower's LinkState."""
    grid: Any
    """The server app's."""
    database: Path

    def courier(self, poll_s: float = 0.05) -> Courier:
        """The server's side of messages."""
        return Courier(self.grid, poll_s)


@contextmanager
def superlink(folder: Path, members: int = 2) -> Iterator[SuperLink]:
    """Start one on 127.0.0.1 with TLS and a database in `folder`."""
    import uvicorn
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.superlink.grid import HttpGrid

    authority, database = make_authority(folder), folder / "superlink.db"
    pair = make_server_certificate(folder, authority, ["127.0.0.1"])
    app = _app(database)
    state = app.state.linkstate_factory.state()
    keys = [make_device_key(folder, number).private for number in range(members)]
    sent = [FleetApi("127.0.0.1:1", authority.public, key).public_key for key in keys]
    nodes = [state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0, name=f"d{n}") for n, key in enumerate(sent)]
    run, task, token = _begun(state)
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        options = uvicorn.Config(app, ssl_keyfile=str(pair.private), ssl_certfile=str(pair.public), log_level="error")
        server, over = uvicorn.Server(options), threading.Event()

        def beat() -> None:
            while not over.wait(10.0):
                state.acknowledge_task_heartbeat(task)

        threads = [threading.Thread(target=server.run, args=([door],), daemon=True), threading.Thread(target=beat)]
        for thread in threads:
            thread.start()
        while not server.started:
            time.sleep(0.01)
        grid = HttpGrid(address, root_certificates=authority.public.read_bytes(), token=token)
        grid._retry_invoker = None  # type: ignore[assignment]  # no request outlives this SuperLink
        grid.set_run(state.get_run_info(run_ids=[run])[0])
        try:
            yield SuperLink(address, authority.public, keys, nodes, run, state, grid, database)
        finally:
            over.set()
            grid.close()
            server.should_exit = server.force_exit = True
            for thread in threads:
                thread.join(timeout=20)


def _app(database: Path) -> Any:
    """Flower's app with our limits in front, which asks devices for registered keys."""
    main: Any = import_module("flwr.superlink.main")
    extensions: Any = import_module("flwr.superlink.extensions")
    before = extensions.get_middleware, main.get_ee_linkstate_db
    main.get_ee_linkstate_db = lambda: str(database)
    try:
        limits.install(extensions, main)
        app = main.create_app()
    finally:
        extensions.get_middleware, main.get_ee_linkstate_db = before
    app.state.enable_supernode_auth = True
    return app


def _begun(state: Any) -> tuple[int, int, str]:
    """A run whose server app is this process: its number, its task's and the task's token."""
    from flwr.common.constant import NOOP_FLWR_AID
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
    from flwr.supercore.task_identity import TaskIdentity

    app = TaskType.SERVER_APP
    run = state.create_run("a/b", "1", "c" * 64, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, app)
    task = state.get_tasks(run_ids=[run])[0].task_id
    token = state.claim_task(task)
    state.activate_task(task)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, 1
    return run, task, token
