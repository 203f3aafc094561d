"""Which columns of a table, arrays of a file or names of folders hold inputs, labels, devices and which set."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kfl.core.errors import DataError
from kfl.core.suggest import did_you_mean

X_WORDS = ("x", "data", "image", "img", "input", "feature", "signal", "sample")
Y_WORDS = ("y", "label", "target", "class", "fine_label")
DEVICE_WORDS = ("device", "client", "user", "subject", "person", "participant", "writer", "speaker")
"""What inputs, labels and devices are called, in the singular; `_id` may follow the last."""
TEST_WORDS = ("test", "testing", "t10k")
VALID_WORDS = ("val", "valid", "validation")
TRAIN_WORDS = ("train", "training")


def split_of(words: Sequence[str]) -> str:
    """Return which set some words of a name speak of: train, test or valid, or the empty string for none of them.

    >>> split_of(["x", "train"]), split_of(["validation"]), split_of(["x"])
    ('train', 'valid', '')
    """
    kinds = {"test": TEST_WORDS, "valid": VALID_WORDS, "train": TRAIN_WORDS}
    return next((kind for kind, known in kinds.items() if any(word in known for word in words)), "")


def column_words(name: str) -> str:
    """A name as `choose` compares it: lower case, in the singular, without `id` at its end.

    >>> column_words("Subject_ID"), column_words("images"), column_words("X"), column_words("fine_label")
    ('subject', 'image', 'x', 'fine_label')
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if len(words) > 1 and words[-1] in ("id", "ids"):
        words = words[:-1]
    return re.sub(r"(?<=[^s])s$", "", re.sub(r"classes$", "class", "_".join(words)))


def choose(
    where: str,
    role: str,
    given: str,
    candidates: Sequence[str],
    present: Sequence[str],
    words: Sequence[str],
    what: str,
    like: str = "",
) -> str:
    """Return the column for a role: the one that was named, else the only candidate whose name is one of `words`.

    Args:
        where: The file, for sentences.
        role: x, y or device.
        given: The name that was asked for; empty to find one.
        candidates: Columns that may have the role.
        present: All columns.
        words: Names of the role in the singular.
        what: The role in words.
        like: What else a name may end with, where no name is one of the words.

    Raises:
        DataError: In one sentence, where none is found or several may be meant.
    """
    if given:
        if given not in present:
            raise missing(where, role, present, (given,), what)
        return given
    found = [name for name in candidates if column_words(name) in words]
    if not found and like:
        found = [name for name in candidates if column_words(name).endswith(f"_{like}")]
    if len(found) > 1:
        raise unclear(where, role, found, what)
    if not found:
        raise missing(where, role, present, words, what)
    return found[0]


def unclear(where: str, role: str, found: Sequence[str], what: str) -> DataError:
    """The sentence where several may be meant."""
    return DataError(
        f"{where} has {' and '.join(found)}, which may each hold the {what}: say which by ',{role}=NAME' at the end of "
        "the path."
    )


def missing(where: str, role: str, present: Sequence[str], words: Sequence[str], what: str) -> DataError:
    """The sentence where none is meant."""
    hint = did_you_mean(words[0], present) if len(words) == 1 else ""
    wanted = " or ".join((*words[:2], "the like")) if len(words) > 1 else words[0]
    return DataError(
        f"{where} has {', '.join(present) or 'nothing'}, but no {what} by the name {wanted}{hint}: say where they are "
        f"by ',{role}=NAME' at the end of the path."
    )
