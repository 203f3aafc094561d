"""Server and client of `benchmarks.peers.flower_simulation`; a module, so that actors can import it."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from benchmarks.peers.tasks import Task, told

WORKLOAD, ALGORITHM, ROUNDS = "KFL_PEER_WORKLOAD", "KFL_PEER_ALGORITHM", "KFL_PEER_ROUNDS"
client = ClientApp()
server = ServerApp()


@functools.cache
def task() -> Task:
    """The workload of this run; actors learn it from their environment, and keep the data they have read."""
    torch.set_num_threads(1)
    return Task(os.environ[WORKLOAD])


def received_model(message: Message, context: Context, device: int) -> nn.Module:
    """The model in the message, or the client's own, or its start."""
    model = task().new_model(device)
    if "model" in message.content:
        model.load_state_dict(message.content["model"].to_torch_state_dict())
    elif "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


@client.train()
def train(message: Message, context: Context) -> Message:
    """The local steps; the model goes back, or class means."""
    device = int(context.node_config["partition-id"])
    number = int(message.content["round"]["number"])
    model = received_model(message, context, device)
    if os.environ[ALGORITHM] == "fedavg":
        task().train(model, device, number, None)
        arrays = ArrayRecord(model.state_dict())
    else:
        given = message.content["knowledge"].to_torch_state_dict()
        task().train(model, device, number, (given["means"], given["known"]))
        total, counts = task().class_sums(model, device)
        context.state["model"] = ArrayRecord(model.state_dict())
        arrays = ArrayRecord({"total": Array(total.numpy()), "counts": Array(counts.numpy())})
    samples = len(task().samples(device, "train")[1])
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"samples": samples})})
    return Message(content=content, reply_to=message)


@client.evaluate()
def test(message: Message, context: Context) -> Message:
    """Right predictions of one client."""
    device = int(context.node_config["partition-id"])
    right = task().right(received_model(message, context, device), device)
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
    while len(nodes := sorted(grid.get_node_ids())) < task().devices:
        time.sleep(0.5)
    common = os.environ[ALGORITHM] == "fedavg"
    model = task().new_model(None).state_dict() if common else {}
    shape = (task().classes, task().features)
    means, known = np.zeros(shape, np.float32), np.zeros(shape[0], np.float32)
    seconds = []
    for number, chosen in enumerate(task().schedule(int(os.environ[ROUNDS]) + 1)):
        started = time.perf_counter()
        sent: dict[str, Any] = {"model": ArrayRecord(model)} if common else {"knowledge": _knowledge(means, known)}
        message = {**sent, "round": ConfigRecord({"number": number})}
        replies = ask(grid, "train", [nodes[k] for k in chosen], message)
        if common:
            model = _average(replies)
        else:
            arrays = [reply.content["arrays"] for reply in replies]
            counts = sum(array["counts"].numpy() for array in arrays)
            total = sum(array["total"].numpy() for array in arrays)
            means = np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], means).astype(np.float32)
            known = np.maximum(known, (counts > 0).astype(np.float32))
        tested = [nodes[k] for k in task().tested(chosen)]
        said = ask(grid, "evaluate", tested, {"model": ArrayRecord(model)} if common else {})
        right = sum(int(reply.content["metrics"]["right"]) for reply in said)
        seconds.append(time.perf_counter() - started)
    print(f"{task().name} {os.environ[ALGORITHM]:10s} Flower {told(seconds)}   {right} right", flush=True)


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
