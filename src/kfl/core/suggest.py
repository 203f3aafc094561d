"""Suggest the nearest known word for an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

SHORTEST_PART = 3
"""Letters that the beginning of a word needs to stand for the whole of it."""
LONG = 6
"""Letters from which a word must be more alike than a short one, in which one slip is a larger part."""

SYNONYMS = {
    "gpu": "cuda",
    "cuda:0": "cuda",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "double": "float64",
    "bfloat16": "bf16",
    "dir": "dirichlet",
    "noniid": "shards",
    "pathological": "shards",
    "random": "uniform",
    "sequential": "round-robin",
    "drift-plus-penalty": "lyapunov",
    "prototypes": "fedproto",
    "standalone": "local",
    "fmnist": "fashion-mnist",
    "cifar": "cifar10",
    "digits": "mnist-5k",
    "resnet": "resnet8",
    "wb": "wandb",
    "5g": "5g-phone",
    "lte": "lte-m",
}
"""Other people's words for ours; one whose meaning is not among the known words is ignored."""

MEANT = {
    "alpha": "dirichlet_alpha",
    "batch": "batch_size",
    "bs": "batch_size",
    "cell": "radio",
    "clients": "devices",
    "num_clients": "devices",
    "n_clients": "devices",
    "num_devices": "devices",
    "nodes": "devices",
    "comm_rounds": "rounds",
    "communication_rounds": "rounds",
    "global_rounds": "rounds",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "data": "dataset",
    "epochs": "local_steps",
    "local_epochs": "local_steps",
    "hidden": "widths",
    "hidden_size": "widths",
    "lam": "knowledge_weight",
    "lambda_": "knowledge_weight",
    "lr": "learning_rate",
    "method": "algorithm",
    "strategy": "algorithm",
    "network": "model",
    "partition": "split",
    "power_dbm": "max_power_dbm",
    "bandwidth": "bandwidth_hz",
    "deadline": "deadline_s",
    "budget": "budget_j_per_round",
    "clients_per_round": "count",
    "local_learning_rate": "learning_rate",
    "client_lr": "learning_rate",
    "eta": "learning_rate",
    "lbs": "batch_size",
    "local_batch_size": "batch_size",
    "mom": "momentum",
    "local_ep": "local_steps",
    "num_epochs": "local_steps",
    "lamda": "knowledge_weight",
    "mu": "knowledge_weight",
    "beta": "dirichlet_alpha",
    "nc": "devices",
    "users": "devices",
    "num_users": "devices",
    "num_supernodes": "devices",
    "num_partitions": "devices",
    "gr": "rounds",
    "num_server_rounds": "rounds",
    "iterations": "rounds",
    "join_ratio": "count",
    "jr": "count",
    "fraction_fit": "count",
    "frac": "count",
    "algo": "algorithm",
    "alg": "algorithm",
    "methods": "algorithms",
    "net": "model",
    "arch": "model",
    "backbone": "model",
    "data_path": "data_dir",
    "data_root": "data_dir",
    "root": "data_dir",
    "o": "out",
    "output": "out",
    "output_dir": "out",
    "save_dir": "out",
    "logdir": "out",
    "gpu": "device",
    "cuda": "device",
    "device_id": "device",
    "no_cuda": "device",
    "cpu": "device",
    "noniid": "split",
    "iid": "split",
    "partitioner": "split",
    "classes_per_client": "classes_per_device",
    "samples_per_client": "samples_per_device",
    "random_seed": "seed",
    "times": "seeds",
    "repeats": "seeds",
    "runs": "seeds",
    "trials": "seeds",
    "eval_gap": "evaluate_every",
    "eval_every": "evaluate_every",
    "test_interval": "evaluate_every",
    "drop_rate": "drop_after",
    "sampler": "scheduler",
    "client_selection": "scheduler",
    "num_workers": "workers",
    "n_jobs": "workers",
    "silent": "quiet",
    "wandb": "track",
    "tensorboard": "track",
    "mlflow": "track",
    "logger": "track",
    "cfg": "config",
    "config_file": "config",
    "dtype": "precision",
}
"""Other people's words for our fields and options; one whose meaning a class or command does not have is ignored."""


def nearest(word: object, known: Iterable[object], also: Mapping[str, str] | None = None) -> str | None:
    """The known word that was probably meant, or None where none is near.

    Capitals, hyphens, underscores and blanks do not count. `also` holds more of other people's words for known ones
    than `SYNONYMS`.

    >>> nearest("Lyapunv", ["uniform", "lyapunov"]), nearest("CIFAR-10", ["mnist", "cifar10"]), nearest("x", ["mnist"])
    ('lyapunov', 'cifar10', None)
    >>> nearest("lyap", ["uniform", "lyapunov"]), nearest("horizon", ["rounds"], {"horizon": "rounds"})
    ('lyapunov', 'rounds')
    """
    names = {_plain(name): str(name) for name in known}
    wanted = _plain(word)
    if not wanted:
        return None
    for foreign, ours in {**SYNONYMS, **(also or {})}.items():
        if _plain(foreign) == wanted and _plain(ours) in names:
            return names[_plain(ours)]
    if wanted in names:
        return names[wanted]
    if close := difflib.get_close_matches(wanted, names, 1, 0.6 if len(wanted) < LONG else 0.7):
        return names[close[0]]
    parts = [name for name in names if len(wanted) >= SHORTEST_PART and name.startswith(wanted)]
    return names[parts[0]] if len(parts) == 1 else None


def did_you_mean(word: object, known: Iterable[object], also: Mapping[str, str] | None = None) -> str:
    """The question that ends a sentence about an unknown word, before its full stop; empty where none is near.

    >>> f"There is no kfl rnu{did_you_mean('rnu', ['run', 'report'])}."
    'There is no kfl rnu (did you mean run?).'
    """
    near = nearest(word, known, also)
    return "" if near is None else f" (did you mean {near}?)"


def _plain(word: object) -> str:
    return re.sub(r"[-_\s]+", "", str(word).casefold())
