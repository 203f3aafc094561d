"""Errors a user can act on: each is one sentence that names the field, the value and what would be right.

The command line prints the sentence and exits with status 2; it never shows a traceback for these.
Anything that is not a `KflError` is a bug in kfl.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from kfl.core.names import shortened
from kfl.core.suggest import did_you_mean
from kfl.core.text import shown


class KflError(Exception):
    """Base of every error kfl raises on purpose.

    >>> import kfl
    >>> try:
    ...     kfl.load_run("no/such/folder")
    ... except kfl.KflError as problem:
    ...     print(type(problem).__name__)
    RunFolderError
    """

    exit_status = 2
    """What the command line exits with."""


class ConfigError(KflError):
    """A field of a configuration has a value that cannot work.

    `choices` are the words that the field takes, where it takes words: the one nearest to the value is asked for.

    >>> raise ConfigError("scheduler", "lyapunv", "one of uniform, lyapunov", choices=("uniform", "lyapunov"))
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: scheduler is 'lyapunv', but must be one of uniform, lyapunov (did you mean lyapunov?).
    """

    def __init__(self, field: str, value: object, expected: str, *, choices: Iterable[object] = ()) -> None:
        what = shortened(field, 200)
        super().__init__(f"{what} is {shown(value)}, but must be {expected}{did_you_mean(value, choices)}.")
        self.field = field
        self.value = value


class DataError(KflError):
    """A dataset is missing, damaged or does not fit the experiment."""


class TraceError(KflError):
    """A trace of gains, harvest or availability is missing, wrong in a line, or does not fit the fleet."""


class ModelError(KflError):
    """A model does not have the parts or the sizes that are needed."""


class RunFolderError(KflError):
    """A run folder cannot be written, or belongs to another experiment."""


class DivergedError(KflError):
    """The training of most devices diverged. Runs are deterministic, so retrying does not help."""


class InfeasibleRunError(KflError):
    """No device of a fleet can ever take part, so that nothing would be learned."""


class MissingExtraError(KflError):
    """Optional packages are needed for this and are not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: pip install 'kfl[{extra}]'."
        )

    @classmethod
    def of_several(cls, packages: Mapping[str, str], purpose: str) -> Self:
        """For several packages at once, each with the extra that brings it; `purpose` is one of several things.

        >>> raise MissingExtraError.of_several({"wandb": "wandb", "mlflow": "mlflow"}, "The trackers wandb and mlflow")
        Traceback (most recent call last):
        ...
        kfl.core.errors.MissingExtraError: The trackers wandb and mlflow need the packages 'wandb' and 'mlflow', which \
are not installed: pip install 'kfl[wandb,mlflow]'.
        """
        error = cls.__new__(cls)
        listed, extras = " and ".join(map(repr, packages)), ",".join(packages.values())
        sentence = f"{purpose} need the packages {listed}, which are not installed: pip install 'kfl[{extras}]'."
        Exception.__init__(error, sentence)
        return error


class StoppedError(KflError):
    """The run was asked to stop, did so after a whole round, and can be resumed."""

    exit_status = 130

    def __init__(self, folder: object, rounds: int) -> None:
        super().__init__(f"Stopped after round {rounds}. To continue: kfl resume {folder}")
        self.rounds = rounds


class ShortOfMemoryError(KflError):
    """There is less memory than a run needs."""

    def __init__(self) -> None:
        super().__init__(
            "There is not enough memory for this; schedule fewer devices in a round (--scheduler.count), use smaller "
            "models (--widths), or a smaller --algorithm.batch-size. kfl resume continues a run that has begun."
        )

    @staticmethod
    def means(problem: BaseException) -> bool:
        """Whether memory ran out: Python's own error, or one of PyTorch's or of the system's loader, by its words.

        >>> words = ("DefaultCPUAllocator: can't allocate memory", "mat1 and mat2 shapes cannot be multiplied")
        >>> [ShortOfMemoryError.means(RuntimeError(text)) for text in words]
        [True, False]
        """
        return isinstance(problem, MemoryError) or any(words in str(problem) for words in NO_MEMORY)


NO_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "failed to map segment")
