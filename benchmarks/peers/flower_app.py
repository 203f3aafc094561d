"""Server and client of `benchmarks.peers.flower_simulation`; a module, so that actors can import it."""

from __future__ import annotations

import functools
import os
import statistics
import time
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from benchmarks.naive_loop import evaluate, local_steps
from benchmarks.workloads import CLASSES, DEVICES, FEATURES, new_model, schedule, workload_data
from kfl.models import SplitModel

WORKLOAD, ALGORITHM, ROUNDS = "KFL_PEER_WORKLOAD", "KFL_PEER_ALGORITHM", "KFL_PEER_ROUNDS"
Pair = tuple[torch.Tensor, torch.Tensor]
client = ClientApp()
server = ServerApp()


@functools.cache
def data() -> Any:
    """The workload of this run; actors learn it from their environment."""
    torch.set_num_threads(1)
    return workload_data(os.environ[WORKLOAD])


@functools.cache
def samples(device: int, split: str) -> Pair:
    """A client's samples, read once by each actor."""
    found: Pair = data().read(device, split)
    return found


def received_model(message: Message, context: Context, device: int) -> SplitModel:
    """The model in the message, or the client's own, or its start."""
    model = new_model(os.environ[WORKLOAD], 0, device)
    if "model" in message.content:
        model.load_state_dict(message.content["model"].to_torch_state_dict())
    elif "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


@client.train()
def train(message: Message, context: Context) -> Message:
    """Five local steps; the model goes back, or class means."""
    device = int(context.node_config["partition-id"])
    x, y = samples(device, "train")
    model = received_model(message, context, device)
    if os.environ[ALGORITHM] == "fedavg":
        local_steps(model, x, y, None, None)
        arrays = ArrayRecord(model.state_dict())
    else:
        given = message.content["knowledge"].to_torch_state_dict()
        local_steps(model, x, y, given["means"], given["known"] > 0)
        with torch.no_grad():
            total = torch.zeros(CLASSES, FEATURES).index_add_(0, y, model.body(x))
        context.state["model"] = ArrayRecord(model.state_dict())
        counts = torch.bincount(y, minlength=CLASSES).float()
        arrays = ArrayRecord({"total": Array(total.numpy()), "counts": Array(counts.numpy())})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"samples": len(y)})})
    return Message(content=content, reply_to=message)


@client.evaluate()
def test(message: Message, context: Context) -> Message:
    """Right predictions of one client."""
    device = int(context.node_config["partition-id"])
    right = evaluate([received_model(message, context, device)], [samples(device, "test")])
    return Message(content=RecordDict({"metrics": MetricRecord({"right": right})}), reply_to=message)


def ask(grid: Grid, kind: str, nodes: list[int], records: dict[str, Any]) -> list[Message]:
    """Send the same to some clients and wait for all of them."""
    out = [Message(content=RecordDict(records), message_type=kind, dst_node_id=node) for node in nodes]
    replies = list(grid.send_and_receive(out))
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"A client failed: {reply.error.reason}")
    if len(replies) < len(nodes):
        raise RuntimeError(f"Only {len(replies)} of {len(nodes)} clients answered.")
    return replies


@server.main()
def main_of_server(grid: Grid, context: Context) -> None:
    """Rounds, timed from the first message to the last count of right predictions."""
    while len(nodes := sorted(grid.get_node_ids())) < DEVICES:
        time.sleep(0.5)
    common = os.environ[ALGORITHM] == "fedavg"
    model = new_model(os.environ[WORKLOAD], 0, None).state_dict()
    means, known = np.zeros((CLASSES, FEATURES), np.float32), np.zeros(CLASSES, np.float32)
    seconds = []
    for chosen in schedule(int(os.environ[ROUNDS]) + 1):
        started = time.perf_counter()
        sent = {"model": ArrayRecord(model)} if common else {"knowledge": _knowledge(means, known)}
        replies = ask(grid, "train", [nodes[k] for k in chosen], sent)
        if common:
            model = _average(replies)
        else:
            arrays = [reply.content["arrays"] for reply in replies]
            counts = sum(array["counts"].numpy() for array in arrays)
            total = sum(array["total"].numpy() for array in arrays)
            means = np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], means).astype(np.float32)
            known = np.maximum(known, (counts > 0).astype(np.float32))
        told = ask(grid, "evaluate", nodes, {"model": ArrayRecord(model)} if common else {})
        right = sum(int(reply.content["metrics"]["right"]) for reply in told)
        seconds.append(time.perf_counter() - started)
    rate = 1 / statistics.median(seconds[1:])
    print(f"{os.environ[WORKLOAD]} {os.environ[ALGORITHM]:10s} Flower {rate:6.2f} rounds/s   {right} right", flush=True)


def _knowledge(means: np.ndarray, known: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"means": Array(means), "known": Array(known)})


def _average(replies: list[Message]) -> Any:
    weights = [float(reply.content["metrics"]["samples"]) for reply in replies]
    states = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
    total = sum(weights)
    return {
        name: sum(state[name] * (weight / total) for state, weight in zip(states, weights, strict=True))
        for name in states[0]
    }
