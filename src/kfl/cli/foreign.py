"""Flags of other programs for federated learning (PFLlib, HtFLlib, FL-bench, Flower's examples), in kfl's words.

They are answered, not obeyed: a flag of the same name may mean something else there, such as a fraction of the devices
in place of their number, and a command in a paper's appendix should have one spelling. The answer has the whole line to
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Values = Mapping[str, str]
"""What the options of the command have: what was typed, or their defaults."""


@dataclass(frozen=True)
class Translation:
    """What a flag is in kfl."""

    reason: str
    """A clause for people, such as: kfl calls it --devices."""
    words: tuple[str, ...]
    """The words to type in its place; none where it is to be left out."""


@dataclass(frozen=True)
class _Meaning:
    """Flags that mean the same, and what it is here."""

    flags: str
    """Other programs' flags without their dashes, separated by blanks."""
    ours: tuple[str, ...]
    """Our options for it; the first that the command has counts."""
    note: str = ""
    """What to know about it, after its name."""
    words: Callable[[str, Sequence[str], Values], Sequence[str]] = lambda ours, values, _: (ours, *values)
    """The words to type: from our option, the values given, and what the options have."""


def _always(*value: str) -> Callable[[str, Sequence[str], Values], Sequence[str]]:
    return lambda ours, values, _: (ours, *value)


def _count(ours: str, values: Sequence[str], options: Values) -> Sequence[str]:
    """A fraction of the devices as their number."""
    try:
        fraction, devices = float(values[0]), int(float(options["--devices"]))
    except (IndexError, KeyError, ValueError):
        return (ours, "N")
    return (ours, str(max(1, round(fraction * devices))))


def _device(ours: str, values: Sequence[str], _: Values) -> Sequence[str]:
    """The GPU, unless the value says that there is to be none."""
    return (ours, "cpu" if values and values[0].casefold() in ("-1", "cpu", "false", "no", "none") else "cuda")


def _seeds(ours: str, values: Sequence[str], _: Values) -> Sequence[str]:
    """A number of repetitions as seeds."""
    return (ours, f"0..{int(values[0]) - 1}" if values and values[0].isdigit() and int(values[0]) > 1 else "0")


_MEANINGS = (
    _Meaning(
        "lr learning-rate local-learning-rate local-lr client-lr client-learning-rate eta",
        ("--algorithm.learning-rate",),
    ),
    _Meaning("batch-size bs lbs local-bs local-batch-size client-batch-size", ("--algorithm.batch-size",)),
    _Meaning("momentum mom local-momentum client-momentum", ("--algorithm.momentum",)),
    _Meaning(
        "epochs epoch e local-epochs local-epoch local-ep le ls local-steps num-epochs num-local-epochs "
        "local-iterations",
        ("--algorithm.local-steps",),
        "passes over a device's data",
    ),
    _Meaning(
        "lambda lamda lam mu proximal-mu lambda-proto ld",
        ("--algorithm.knowledge-weight", "--algorithm.prototype-weight", "--algorithm.distill-weight"),
    ),
    _Meaning("alpha al", ("--algorithm.mixing",)),
    _Meaning(
        "alpha dir dir-alpha dirichlet beta dirichlet-beta",
        ("--dirichlet-alpha",),
        words=lambda ours, values, _: ("--split", "dirichlet", ours, *values),
    ),
    _Meaning(
        "clients num-clients n-clients client-num nc cn clients-num total-clients number-of-clients num-users users "
        "nodes num-nodes num-supernodes supernodes num-partitions parties n-parties workers-num",
        ("--devices",),
    ),
    _Meaning(
        "global-rounds gr num-rounds n-rounds num-server-rounds server-rounds comm-round comm-rounds global-epoch "
        "global-epochs ge communication-rounds iterations num-iterations n-iter round",
        ("--rounds",),
    ),
    _Meaning(
        "join-ratio jr fraction-fit fraction-train frac participation participation-rate sample-fraction sampling-rate "
        "client-fraction c",
        ("--scheduler.count",),
        "a number of devices, not a fraction of them",
        _count,
    ),
    _Meaning(
        "clients-per-round num-clients-per-round client-per-round devices-per-round min-fit-clients min-train-nodes "
        "sampled-clients",
        ("--scheduler.count",),
    ),
    _Meaning("algo alg method strategy fl-method", ("--algorithm", "--algorithms", "--methods")),
    _Meaning("algorithm", ("--algorithms", "--methods")),
    _Meaning("algorithms methods", ("--algorithm", "--algorithms", "--methods")),
    _Meaning("data d dataset-name data-name ds", ("--dataset",)),
    _Meaning("data-path data-root root dataroot datadir dataset-path", ("--data-dir",)),
    _Meaning("net arch network backbone model-name model-family m", ("--model",)),
    _Meaning(
        "output o output-dir output-path out-dir outdir save-dir save-path save result-dir results-dir results logdir "
        "log-dir save-folder-name sfn",
        ("--out", "--save"),
    ),
    _Meaning("gpu gpus cuda use-cuda use-gpu device-id did gpu-id num-gpus dev", ("--device",), words=_device),
    _Meaning("no-cuda no-gpu cpu use-cpu", ("--device",), words=_always("cpu")),
    _Meaning("iid", ("--split",), words=_always("iid")),
    _Meaning("noniid non-iid niid", ("--split",), words=_always("shards")),
    _Meaning("partition partition-type partitioner distribution partition-method", ("--split",)),
    _Meaning(
        "classes-per-client class-per-client shards shards-per-client classes class-num num-classes-per-client",
        ("--classes-per-device",),
    ),
    _Meaning("samples-per-client num-samples", ("--samples-per-device",)),
    _Meaning("random-seed manual-seed", ("--seed",)),
    _Meaning("seed", ("--seeds",)),
    _Meaning("seeds", ("--seed",), "one at a time; kfl compare takes several"),
    _Meaning("times repeats repeat runs num-runs trials n-seeds num-seeds t", ("--seeds",), words=_seeds),
    _Meaning("eval-gap eg test-gap tg eval-every eval-interval test-interval eval-freq", ("--evaluate-every",)),
    _Meaning("client-drop-rate cdr drop-rate dropout-rate", ("--faults.drop-after",)),
    _Meaning("selection client-selection sampler selector client-sampling", ("--scheduler",)),
    _Meaning("num-workers n-workers jobs n-jobs j parallel processes num-cpus", ("--workers",)),
    _Meaning("silent no-progress no-verbose s", ("--quiet",), words=_always()),
    _Meaning("wandb use-wandb", ("--track",), words=_always("wandb")),
    _Meaning("tensorboard tb", ("--track",), words=_always("tensorboard")),
    _Meaning("mlflow", ("--track",), words=_always("mlflow")),
    _Meaning("logger tracker log", ("--track",)),
    _Meaning("cfg config-file config-path conf", ("--config",)),
    _Meaning("dtype fp", ("--precision",)),
    _Meaning("bandwidth band", ("--radio.bandwidth-hz", "--bandwidth-hz"), "in hertz"),
    _Meaning("deadline", ("--radio.deadline-s", "--deadline-s"), "in seconds"),
    _Meaning("budget energy-budget", ("--radio.budget-j-per-round",), "in joules"),
    _Meaning("power max-power tx-power", ("--radio.max-power-dbm",), "in dBm"),
)

_NOTHING = {
    "verbose v": "leave it out: progress is shown without it",
    "num-classes nb n-classes": "leave it out: the data says how many there are",
    "optimizer opt optim": "leave it out: devices train with SGD and momentum",
    "goal go": "leave it out: --out names the run",
    "weight-decay wd": "leave it out: kfl has no weight decay",
    "learning-rate-decay ldg lr-decay": "leave it out: the learning rate stays as it is",
    "save-model save-models": "leave it out: models are kept in the run folder",
    "yes y force f overwrite": "leave it out: kfl asks no questions and overwrites no run",
}
"""Flags that have nothing to say here, and why."""


def translate(flag: str, values: Sequence[str], known: Sequence[str], options: Values) -> Translation | None:
    """What another program's flag is in a command that has the options `known`; None where it is not a known one.

    >>> translate("--num_clients", ["20"], ["--devices"], {})
    Translation(reason='kfl calls it --devices', words=('--devices', '20'))
    >>> translate("-jr", ["0.1"], ["--devices", "--scheduler.count"], {"--devices": "50"}).words
    ('--scheduler.count', '5')
    """
    word = flag.lstrip("-").replace("_", "-").casefold()
    for meaning in _MEANINGS:
        ours = next((name for name in meaning.ours if name in known), None)
        if ours is None or word not in meaning.flags.split():
            continue
        words = tuple(meaning.words(ours, values, options))
        shown = ours if words[:1] != (ours,) or words[1:] == tuple(values) else " ".join(words)
        note = f", {meaning.note}" if meaning.note else ""
        return Translation(f"kfl calls it {shown}{note}", words)
    for flags, reason in _NOTHING.items():
        if word in flags.split():
            return Translation(reason, ())
    return None


def meanings(flag: str) -> list[str]:
    """Our options for another program's flag, in whatever command they are.

    >>> meanings("--lr")
    ['--algorithm.learning-rate']
    """
    word = flag.lstrip("-").replace("_", "-").casefold()
    return [name for meaning in _MEANINGS if word in meaning.flags.split() for name in meaning.ours]
