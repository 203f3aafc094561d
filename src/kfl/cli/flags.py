"""Options of a command, read from the dataclass that holds them: for help, completion and suggestions."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro


@dataclass(frozen=True)
class Flag:
    """An option of a command, or an argument without a dash."""

    name: str
    """As it is typed, such as --algorithm.learning-rate; in capitals without a dash."""
    hint: Any
    """Its type."""
    metavar: str
    text: str
    """Its help."""
    value: Any = None
    """Its default; MISSING where it is required."""
    paired: bool = True
    """Whether a switch can also be turned off."""

    @property
    def help(self) -> str:
        """The first sentence of its help."""
        return self.text.partition(". ")[0].rstrip(".")

    @property
    def opposite(self) -> str:
        """The flag that turns a switch off, such as --algorithm.no-memory; empty where there is none."""
        head, dot, last = self.name.lstrip("-").rpartition(".")
        return f"--{head}{dot}no-{last}" if self.hint is bool and self.paired else ""

    @property
    def positional(self) -> bool:
        """Whether it is an argument without a dash."""
        return not self.name.startswith("-")


def flags_of(cls: type[Any], default: Any = None, prefix: str = "") -> list[Flag]:
    """The options that the fields of a dataclass are, those of its parts included."""
    found = []
    hints, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    for field in fields(cls):
        hint: Any = hints[field.name]
        notes: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
        named: Any = next((note for note in notes if hasattr(note, "metavar")), None)  # tyro.conf.arg
        name = field.name if named is None or named.name is None else named.name
        value = getattr(default, field.name, field.default)
        if value is MISSING and field.default_factory is not MISSING:
            value = field.default_factory()
        if is_dataclass(value) or is_dataclass(hint):
            part = type(value) if is_dataclass(value) else hint
            found += flags_of(part, value, f"{prefix}{name}." if name else prefix)
            continue
        metavar = "" if named is None else named.metavar or ""
        text = docs.get(field.name, "") if named is None or not named.help else named.help
        flag = (metavar or name.upper()) if tyro.conf.Positional in notes else f"--{prefix}{name}".replace("_", "-")
        found.append(
            Flag(flag, hint, metavar, " ".join(text.split()), value, tyro.conf.FlagCreatePairsOff not in notes)
        )
    return found


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The strings below the fields of a dataclass and of those it inherits from."""
    found: dict[str, str] = {}
    for kind in reversed([kind for kind in cls.__mro__ if is_dataclass(kind)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in itertools.pairwise(tree.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
                found[node.target.id] = str(ast.literal_eval(after.value))
    return found
