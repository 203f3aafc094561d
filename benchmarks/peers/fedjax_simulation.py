"""W1 and W2, federated averaging, in FedJAX.

FedJAX needs an environment of its own; kfl is only read from the source tree:

    python -m venv /tmp/peers-jax
    /tmp/peers-jax/bin/pip install fedjax==0.0.17 torch==2.13.0 scipy
    PYTHONPATH=src:. /tmp/peers-jax/bin/python -m benchmarks.peers.fedjax_simulation [--workload W1] [--rounds 5]

Its own algorithm (`fedjax.algorithms.fed_avg`), data containers and evaluation, full batches, the same learning rate
and momentum. Devices have equally many samples, so that nothing is compiled again in a round; the first round, which
compiles, is not counted. The test of the one common model runs over all devices' samples in large batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import WORKLOADS
from kfl.data import partition

CLASSES = 10


def network(workload: str) -> Any:
    """The paper's MLP or CNN in Haiku."""

    def forward(batch: dict[str, Any]) -> Any:
        x = batch["x"]
        if workload == "W1":
            body = [hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(256), jax.nn.relu]
        else:
            body = []
            for channels in (6, 16):
                pool = hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID")
                body += [hk.Conv2D(channels, 5, padding="VALID"), jax.nn.relu, pool]
            body += [hk.Flatten(), hk.Linear(128), jax.nn.relu]
        return hk.Sequential([*body, hk.Linear(64), jax.nn.relu, hk.Linear(CLASSES)])(x)

    return forward


def make_model(workload: str, sample: dict[str, Any]) -> Any:
    """FedJAX's view of a network."""
    transformed = hk.transform(network(workload))

    def loss(batch: dict[str, Any], logits: Any) -> Any:
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)

    return fedjax.create_model_from_haiku(transformed, sample, loss, {"accuracy": fedjax.metrics.Accuracy()})


def client_data(workload: str) -> tuple[dict[bytes, dict[str, Any]], dict[bytes, dict[str, Any]]]:
    """Training and test samples of every device, channels last as JAX prefers."""
    one = WORKLOADS[workload]
    data = one.data().dataset
    split = partition("iid", data.train_y, data.test_y, CLASSES, one.devices, 0)

    def of(which: str, parts: Sequence[Any]) -> dict[bytes, dict[str, Any]]:
        found = {}
        for device, indices in enumerate(parts):
            x = data.inputs(which, indices).numpy()  # type: ignore[arg-type]  # "train" or "test"
            y = data.labels(which, indices).numpy().astype(np.int32)  # type: ignore[arg-type]  # as above
            found[b"%03d" % device] = {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1)), "y": y}
        return found

    return of("train", split.train), of("test", split.test)


def full_batches(train: Any, size: int) -> Any:
    """As many full batches as all others take steps; checked, because FedJAX stops after one pass by default."""
    steps = WORKLOADS["W1"].algorithm.local_steps
    found = fedjax.ShuffleRepeatBatchHParams(batch_size=size, num_epochs=steps)
    for _, client in train.clients():
        if [len(batch["y"]) for batch in client.shuffle_repeat_batch(found)] != [size] * steps:
            raise RuntimeError(f"A client does not take {steps} full-batch steps: the comparison would not be fair.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("W1", "W2"), default="W1")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    jax.tree_map = jax.tree.map  # FedJAX 0.0.17 still asks for it by its old name
    train, test = (fedjax.InMemoryFederatedData(part) for part in client_data(options.workload))
    workload = WORKLOADS[options.workload]
    size, sgd = workload.train, workload.algorithm.sgd()
    first = next(iter(train.clients()))[1].all_examples()
    model = make_model(options.workload, {name: jnp.asarray(value[:2]) for name, value in first.items()})
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(learning_rate=sgd.body_rate, momentum=sgd.momentum),
        server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
        client_batch_hparams=full_batches(train, size),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    ids, seconds, accuracy = list(train.client_ids()), [], 0.0
    for number, chosen in enumerate(workload.schedule(options.rounds + 1)):
        started = time.perf_counter()
        keys = jax.random.split(jax.random.PRNGKey(number), len(chosen))
        clients = [(ids[k], train.get_client(ids[k]), key) for k, key in zip(chosen, keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        batches = fedjax.padded_batch_federated_data(test, batch_size=1000)
        accuracy = float(fedjax.evaluate_model(model, state.params, batches)["accuracy"])
        seconds.append(time.perf_counter() - started)
    rate = 1 / statistics.median(seconds[1:])
    print(f"{options.workload} fedavg     FedJAX {rate:6.2f} rounds/s   {100 * accuracy:.1f} % right", flush=True)


if __name__ == "__main__":
    main()
