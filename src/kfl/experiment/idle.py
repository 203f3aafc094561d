"""Which options act only next to certain others: the table behind "that option would change nothing".

An option that stands in `NEEDS` acts only next to the choices given there, and any other option always:
`tests/simulation/test_idle.py` lists those, so that every new field of an algorithm, a scheduler or a cell is judged.

An option that cannot act is refused where a run or a comparison begins, unless its value asks for nothing: off, its
default, or that of a ready-made cell. So files that hold every field are read. In a comparison it is enough that it
acts in one row. The cell, the faults and the data describe the world: they are idle next to other choices about
the world only, and stay as they are for a method that sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from kfl.algorithms import ALGORITHMS
from kfl.core.errors import ConfigError
from kfl.models import names_widths
from kfl.wireless import PRESETS, Channel, Harvest, Mobility

if TYPE_CHECKING:
    from kfl.experiment.experiment import DataSettings


MODELS: Mapping[str, type[Any]] = {"radio.fading": Channel, "radio.mobility": Mobility, "radio.harvest": Harvest}
"""Fields that a word selects a model for."""


@dataclass(frozen=True)
class Needs:
    """What another field must be for an option to act."""

    choice: str
    """The field, with dots as on the command line."""
    right: str
    """What it must be, in words: the end of "it acts with …"."""
    acts: Callable[[Any], bool]
    """Whether a value of it lets the option act."""


def _one_of(choice: str, *words: str) -> Needs:
    return Needs(choice, f"{choice} {' or '.join(words)}", lambda value: value in words)


def _not(choice: str, word: str, such_as: str) -> Needs:
    return Needs(choice, f"another {choice}, such as {such_as}", lambda value: value != word)


def _above_0(choice: str) -> Needs:
    return Needs(choice, f"{choice} above 0", lambda value: value > 0)


def _given(choice: str) -> Needs:
    return Needs(choice, f"a {choice}", lambda value: value is not None)


_SHARDS = _one_of("split", "shards")
_RADIO = Needs("radio", "a radio", lambda cell: cell is not None)
_TRAINS = Needs("algorithm", "an algorithm that takes training steps", lambda one: one.trains)
_MODELED_GAINS = _not("radio.fading", "trace", "rayleigh")
_FADING = _one_of("radio.fading", "rayleigh", "rician")
_BATTERY = _given("radio.battery_capacity_j")
_RELATIVE_V = Needs("scheduler.v", "scheduler.v none", lambda v: v is None)
_PRICED = Needs("scheduler.as_printed", "scheduler.as_printed off", lambda printed: not printed)
_WHOLE = "a cell that describes whole devices (circuit, static or tail power, a free clock, …)"
_SERVER_TRAINS = _one_of("algorithm.head", "trained")
_DISTILLS = _above_0("algorithm.distill_steps")
_PULL = _one_of("algorithm.pull", "random", "simplex", "knowledge")
_STEPS = (_TRAINS,)
_MEMORY = Needs(
    "algorithm",
    "more than one step in a round: algorithm.local_steps above 1, or a batch_size",
    lambda one: one.local_steps > 1 or one.batch_size is not None or _own_steps(one),
)

NEEDS: Mapping[str, tuple[Needs, ...]] = {
    "classes_per_device": (_one_of("split", "shards", "overlap"),),
    "distinct_classes": (_SHARDS,),
    "dirichlet_alpha": (_one_of("split", "dirichlet"),),
    "widths": (Needs("model", "a model that does not say its widths itself", lambda name: not names_widths(name)),),
    "hard_budget": (
        _RADIO,
        Needs("radio", "a finite budget or battery", lambda cell: cell is None or _is_limited(cell)),
    ),
    "real_work": (_RADIO,),
    "availability_repeat_s": (_given("availability_trace"),),
    # Algorithms. A field that an algorithm does not have lets every option act.
    "algorithm.local_steps": _STEPS,
    "algorithm.learning_rate": _STEPS,
    "algorithm.head_learning_rate": _STEPS,
    "algorithm.momentum": (_TRAINS, _MEMORY),
    "algorithm.batch_size": _STEPS,
    "algorithm.proximal": (_MEMORY,),  # before the first step nothing has moved
    "algorithm.trim": (_one_of("algorithm.aggregation", "trimmed"),),
    "algorithm.noise_counts": (_above_0("algorithm.noise_multiplier"),),
    "algorithm.sketches": (_one_of("algorithm.covariance", "signs"),),
    "algorithm.server_epochs": (_SERVER_TRAINS,),
    "algorithm.server_learning_rate": (_SERVER_TRAINS,),
    "algorithm.server_batch_size": (_SERVER_TRAINS,),
    "algorithm.distill_rate": (_DISTILLS,),
    "algorithm.temperature": (_DISTILLS,),
    "algorithm.proxy_per_class": (_DISTILLS,),
    "algorithm.knowledge_weight": (_PULL,),
    "algorithm.scale": (_one_of("algorithm.pull", "random", "simplex"), _above_0("algorithm.knowledge_weight")),
    "algorithm.targets": (_above_0("algorithm.knowledge_weight"),),
    # Schedulers.
    "scheduler.v": (_RADIO,),
    "scheduler.relative_v": (_RADIO, _RELATIVE_V),
    "scheduler.dearest_upload": (_RADIO, _RELATIVE_V),
    "scheduler.gamma": (_RADIO,),
    "scheduler.epsilon": (
        _RADIO,
        _PRICED,
        Needs("radio", "a cell with the paper's devices", lambda cell: cell.printed_model),
    ),
    "scheduler.device_epsilon": (
        _RADIO,
        _PRICED,
        Needs("radio", _WHOLE, lambda cell: not cell.printed_model),
    ),
    "scheduler.as_printed": (_RADIO,),
    # The cell.
    "radio.radius_m": (_MODELED_GAINS,),
    "radio.min_distance_m": (_MODELED_GAINS,),
    "radio.reference_gain_db": (_MODELED_GAINS,),
    "radio.path_loss_exponent": (_MODELED_GAINS,),
    "radio.shadowing_db": (_MODELED_GAINS,),
    "radio.shadowing_distance_m": (
        _MODELED_GAINS,
        _above_0("radio.shadowing_db"),
        _not("radio.mobility", "none", "waypoint"),
    ),
    "radio.mobility": (_MODELED_GAINS,),
    "radio.fading_correlation": (_FADING,),
    "radio.channel_error": (_FADING,),
    "radio.budget_j_per_round": (_one_of("radio.harvest", "none"),),
    "radio.initial_charge": (_BATTERY,),
    "radio.harvest": (_BATTERY,),
    "radio.receive_power_w": (_given("radio.downlink_power_dbm"),),
    "radio.tail_power_w": (_above_0("radio.tail_s"),),
    "radio.tail_s": (_above_0("radio.tail_power_w"),),
    "radio.round_period_s": (
        Needs(
            "radio",
            "something that goes on between rounds: a harvest, mobility or a trace",
            lambda cell: cell.source.fills or not cell.movement.stays or cell.channel.name == "trace",
        ),
    ),
    # Faults.
    "faults.poison": (
        Needs(
            "faults",
            "faults.poisoned above 0, or scheduled",
            lambda faults: faults.poisoned > 0 or any(entry.startswith("poisoned") for entry in faults.schedule),
        ),
    ),
}
"""Options that act only next to certain values of others, all of which are needed."""
OFF = (None, False, 0)
"""Values that switch something off, which is so next to every choice."""
COUNTED = ("tested_devices", "scheduler.count")
"""Numbers of devices, which do nothing more above that of all devices."""


def idle_options(settings: DataSettings) -> Iterator[tuple[str, Any, str]]:
    """Yield each option that cannot act: its name, its value, and in words what it must be for it to act."""
    for name in (*NEEDS, *COUNTED):
        value = _value(settings, name)
        if value is MISSING:
            continue
        if name in COUNTED:
            if value is not None and settings.devices and value > settings.devices:
                yield name, value, f"at most {settings.devices}, the number of devices"
            continue
        for need in NEEDS[name]:
            found = _value(settings, need.choice)
            if found is not MISSING and not need.acts(_word(found, need.choice)):
                yield name, value, f"left out: it acts with {need.right}, and {_now(settings, need)}"
                break


def check_idle(experiments: Sequence[DataSettings], given: Collection[str] = ()) -> None:
    """Refuse an option that cannot act in any of the experiments.

    Args:
        experiments: Those that run together.
        given: Options that the user typed, which are refused with their defaults, too; None and off say nothing.

    Raises:
        ConfigError: The option, and what would make it act.

    >>> from kfl.experiment import Experiment
    >>> check_idle([Experiment(dirichlet_alpha=0.1), Experiment(dirichlet_alpha=0.1, split="dirichlet")])
    >>> check_idle([Experiment(dirichlet_alpha=0.1)])
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: dirichlet_alpha is 0.1, but must be left out: it acts with split dirichlet, and split \
is shards.
    """
    found = [{name: (value, right) for name, value, right in idle_options(one)} for one in experiments]
    for name in dict.fromkeys(name for some in found for name in some):
        asked = [some[name] for one, some in zip(experiments, found, strict=True) if name in some]
        has_it = [one for one in experiments if _value(one, name) is not MISSING]
        if len(asked) < len(has_it):
            continue
        value, right = next(((v, r) for v, r in asked if not _is_usual(has_it[0], name, v)), (None, ""))
        if not right and name in given and asked[0][0] not in OFF:
            value, right = asked[0]
        if right:
            raise ConfigError(name, value, right)


def words_of(choice: str) -> list[str]:
    """Every word that a field can hold; none for a field that holds anything else.

    >>> words_of("split"), words_of("radio.mobility"), words_of("algorithm.noise_multiplier")
    (['shards', 'iid', 'dirichlet', 'overlap', 'natural'], ['none', 'waypoint'], [])
    """
    from kfl.experiment.experiment import Experiment

    part, _, last = choice.rpartition(".")
    if choice in MODELS:
        return list(MODELS[choice].registry())
    classes: list[type[Any]] = [Experiment]
    if part:
        classes = [*ALGORITHMS.values()] if part == "algorithm" else []
    hints = [get_type_hints(one).get(last) for one in classes]
    words = [word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)]
    return list(dict.fromkeys(words))


def _value(settings: Any, name: str) -> Any:
    """The value of a field with dots in its name; MISSING where there is none, or an own class has it."""
    found = settings
    for part in name.split("."):
        if part == "radio":
            found = getattr(found, "cell_config", MISSING)
        elif found is None or not hasattr(found, part):
            return MISSING
        else:
            found = getattr(found, part)
        if part in ("algorithm", "scheduler") and not type(found).__module__.startswith("kfl."):
            return MISSING  # what an own class makes of a field is its own business
    return found


def _word(value: Any, choice: str) -> Any:
    """A model of the cell is chosen by its name."""
    return getattr(value, "name", value) if choice.startswith("radio.") else value


def _now(settings: DataSettings, need: Needs) -> str:
    """What the deciding field is, in words."""
    found = _value(settings, need.choice)
    if need.choice in ("algorithm", "scheduler"):
        return f"{need.choice} is {found.name}" + (", which takes one step" if need is _MEMORY and found.trains else "")
    if need.choice in ("radio", "faults"):
        return "radio is none" if found is None else "there is none here"
    word = _word(found, need.choice)
    return f"{need.choice} is {'none' if word is None else word}"


def _is_usual(settings: DataSettings, name: str, value: Any) -> bool:
    """Whether a value asks for nothing: off, the default of its field, or what a ready-made cell has there."""
    if value in OFF:
        return True
    *path, last = name.split(".")
    owner = _value(settings, ".".join(path)) if path else settings
    default = next(one.default for one in fields(owner) if one.name == last)
    usual = [default] if path != ["radio"] else [default, *(getattr(cell, last) for cell in PRESETS.values())]
    return value in usual


def _is_limited(cell: Any) -> bool:
    return cell.battery_capacity_j is not None or cell.budget_j_per_round < float("inf")


def _own_steps(algorithm: Any) -> bool:
    """FedRep counts the steps of head and body by themselves."""
    return any((getattr(algorithm, name, None) or 1) > 1 for name in ("head_steps", "body_steps"))
