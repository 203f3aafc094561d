"""Small changes to a Python file, each of which some test should notice: the operators of `studies.mutants`.

A mutant replaces a few bytes of the source and leaves the rest of the text alone, so that its diff is one line.
Annotations, docstrings, text, asserts, logging and imports are not changed: no behaviour depends on them, or their
wording is tested elsewhere.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise

ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "%": "*", "**": "*", "@": "*", "|": "&", "&": "|"}
COMPARISON = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
WORDS = {"is": "is not", "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and"}
CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "floor": "ceil",
    "ceil": "floor",
    "sum": "max",
    "mean": "sum",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "flatnonzero": "atleast_1d",
    "sorted": "list",
    "sqrt": "square",
    "exp": "log",
    "log2": "log",
    "cumsum": "asarray",
}
LOGGERS = frozenset({"log", "logger", "logging", "warnings"})


@dataclass(frozen=True)
class Mutant:
    """One change to one file."""

    path: str
    """The module, from the repository's root."""
    line: int
    lines: tuple[int, int]
    """First and last line of the statement that is changed: a test that runs none of them cannot notice."""
    scope: tuple[int, int]
    """First and last line of the function around it, or of the whole file."""
    function: str
    operator: str
    start: int
    end: int
    new: bytes

    @property
    def in_body(self) -> bool:
        """Whether it is executed when a function is called, not when its module is imported."""
        return self.lines[0] >= self.scope[0] > 1

    def apply(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.new + source[self.end :]

    def diff(self, source: bytes) -> tuple[str, str]:
        """The changed lines without indentation, before and after, each in one line."""
        first, last = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        before, after = source[first:last], source[first : self.start] + self.new + source[self.end : last]
        one, other = (re.sub(r"\s+", " ", text.decode()).strip() for text in (before, after))
        return one, other or "(nothing)"


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file that still compiles, in the order of the text."""
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    unique = {(mutant.start, mutant.end, mutant.new): mutant for mutant in found.mutants}
    return sorted(
        (one for one in unique.values() if _compiles(one.apply(source))), key=lambda one: (one.start, one.new)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.mutants = path, source, list[Mutant]()
        self.offsets = [0]
        for line in source.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.names: list[str] = []
        self.statement = (1, 1)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self.statement = node.lineno, (body[0].lineno - 1 if body else node.end_lineno) or node.lineno
        super().visit(node)

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offsets[node.lineno - 1] + node.col_offset, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def add(
        self, node: ast.expr | ast.stmt | ast.keyword, operator: str, start: int, end: int, new: str | bytes
    ) -> None:
        scope = (1, len(self.offsets))
        if self.functions:
            scope = self.functions[-1].body[0].lineno, self.functions[-1].end_lineno or 0
        line = self.source.count(b"\n", 0, start) + 1
        new = new.encode() if isinstance(new, str) else new
        lines = min(self.statement[0], node.lineno), max(self.statement[1], node.end_lineno or node.lineno)
        name = ".".join(self.names)
        self.mutants.append(Mutant(self.path, line, lines, scope, name, operator, start, end, new))

    def between(self, node: ast.expr, left: ast.expr, right: ast.expr, operator: str, table: dict[str, str]) -> None:
        """Exchange the operator that stands between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        match = re.search(rb"[^\s()\\]+(?: not| in)?(?=[\s(])", self.source[start:end])
        if match and (new := table.get(match.group().decode())):
            self.add(node, operator, start + match.start(), start + match.end(), new)

    # Functions, classes and what is left alone

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.functions.append(node)
        self.names.append(node.name)
        for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()
        self.functions.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _skip(self, node: ast.AST) -> None:
        """Nothing here is changed."""

    visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = _skip  # noqa: N815

    # Statements

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.negate(node.test, "if")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test, "if")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negate(test, "if")
        self.generic_visit(node)

    def negate(self, test: ast.expr, operator: str) -> None:
        start, end = self.span(test)
        self.add(test, operator, start, end, b"(not (" + self.source[start:end] + b"))")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add(node, "return", *self.span(node.value), "None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "raise", *self.span(node), "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, "continue", *self.span(node), "break")

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if not isinstance(call, ast.Call):
            return  # a docstring, or the ellipsis of a protocol
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in LOGGERS:
            return
        self.add(node, "call", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        start, end = self.span(node.target)[1], self.span(node.value)[0]
        match = re.search(rb"([^\s=(]+)=", self.source[start:end])
        if match and (new := ARITHMETIC.get(match.group(1).decode())):
            self.add(node, "arithmetic", start + match.start(1), start + match.end(1), new)
        self.visit(node.value)

    # Expressions

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = (node.left, node.right)
        text = any(isinstance(one, ast.JoinedStr) or _is_text(one) for one in sides)
        if not text:
            self.between(node, node.left, node.right, "arithmetic", ARITHMETIC)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, right in pairwise(sides):
            self.between(node, left, right, "comparison", COMPARISON | WORDS)
        if len(node.ops) == 1 and not isinstance(
            node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq | ast.In | ast.NotIn
        ):
            self.negate(node, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self.between(node, left, right, "logic", WORDS)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            start, end = self.span(node)[0], self.span(node.operand)[0]
            sign = {ast.Not: b"not", ast.USub: b"-", ast.Invert: b"~"}[type(node.op)]
            self.add(node, "sign", start, end, self.source[start:end].replace(sign, b"", 1).lstrip() or b" ")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self.span(node)
        if isinstance(node.value, bool):
            self.add(node, "constant", start, end, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, "constant", start, end, str(node.value + 1))
            if node.value == 1:
                self.add(node, "constant", start, end, "0")
        elif isinstance(node.value, float):
            self.add(node, "constant", start, end, repr(node.value * 2 if node.value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func
        if isinstance(name, ast.Name | ast.Attribute):
            word = name.id if isinstance(name, ast.Name) else name.attr
            if new := CALLS.get(word):
                end = self.span(name)[1]
                self.add(node, "function", end - len(word), end, new)
        for keyword in node.keywords:
            if keyword.arg is not None:
                start, end = self.span(keyword)
                comma = re.match(rb"[ \t]*,[ \t]?", self.source[end:])
                self.add(keyword, "argument", start, end + (comma.end() if comma else 0), b"")
        self.generic_visit(node)
