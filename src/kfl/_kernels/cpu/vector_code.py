"""A small compiler for loops over vectors: LLVM code written from Python, compiled at start, called without the GIL.

The convolutions of the paper's CNN have 6 and 16 channels: too few for a matrix product to be efficient, and too
regular to need one. `Code` writes plain loops whose innermost values are vectors of 16 numbers (16 samples, or 16
neighbouring weights), which is one AVX-512 register of float32; LLVM splits them for processors with narrower
ones. Nothing here knows about neural networks.

Needs the package llvmlite (extra `fast`). Compiling takes a fraction of a second, so nothing is cached on disk.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LANES = 16
"""Numbers in a vector."""

Kernel = Callable[..., None]
"""A compiled function: addresses of arrays, then a whole number."""
Value = Any
"""A value in the code being written (llvmlite has no types for Python's checkers)."""

_keep_alive: list[Value] = []
"""Machine code lives as long as the object that made it."""


class Code:
    """One function in the making. Arguments are addresses of arrays, except the last: a whole number.

    `number` is the type of the numbers, float32 or float64. Offsets count numbers from the start of an array
    (bytes where an array is read with `byte` methods).
    """

    def __init__(self, name: str, arrays: int, number: str = "float32") -> None:
        from llvmlite import ir

        self.ir = ir
        self.name = name
        self.arrays = arrays
        self.scalar = {"float32": ir.FloatType(), "float64": ir.DoubleType()}[number]
        self.vector = ir.VectorType(self.scalar, LANES)
        self.index = ir.IntType(64)
        self.byte = ir.IntType(8)
        self.module = ir.Module(name=name)
        signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * arrays + [self.index])
        self.function = ir.Function(self.module, signature, name)
        for argument in self.function.args[:arrays]:
            argument.add_attribute("noalias")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self._suffix = {"float32": "v16f32", "float64": "v16f64"}[number]
        three = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fma = ir.Function(self.module, three, f"llvm.fma.{self._suffix}")
        self._pointer, self._small = ir.PointerType(), ir.IntType(32)
        self._mask = ir.VectorType(ir.IntType(1), LANES)
        self._align = {"float32": 4, "float64": 8}[number]

    @property
    def arguments(self) -> Sequence[Value]:
        """The arguments in order."""
        arguments: Sequence[Value] = self.function.args
        return arguments

    # ── whole numbers ──
    def whole(self, value: int | Value) -> Value:
        """A constant whole number, or the value itself."""
        return self.ir.Constant(self.index, value) if isinstance(value, int) else value

    def plus(self, *terms: int | Value) -> Value:
        """A sum of whole numbers."""
        return functools.reduce(lambda a, b: self.builder.add(self.whole(a), self.whole(b)), terms)

    def times(self, a: int | Value, b: int | Value) -> Value:
        """A product of whole numbers."""
        return self.builder.mul(self.whole(a), self.whole(b))

    @contextmanager
    def loop(self, count: int | Value) -> Iterator[Value]:
        """Repeat what is written inside for 0, 1, …, count − 1; count may be 0."""
        b, before = self.builder, self.builder.block
        head, body, after = (self.function.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        counter = b.phi(self.index)
        counter.add_incoming(self.whole(0), before)
        b.cbranch(b.icmp_unsigned("<", counter, self.whole(count)), body, after)
        b.position_at_end(body)
        yield counter
        counter.add_incoming(b.add(counter, self.whole(1)), b.block)
        b.branch(head)
        b.position_at_end(after)

    @contextmanager
    def each_bit(self, mask: Value) -> Iterator[Value]:
        """Repeat what is written inside for the number of each bit that is set."""
        b, before, kind = self.builder, self.builder.block, mask.type
        head, body, after = (self.function.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        left = b.phi(kind)
        left.add_incoming(mask, before)
        b.cbranch(b.icmp_unsigned("!=", left, self.ir.Constant(kind, 0)), body, after)
        b.position_at_end(body)
        number = b.cttz(left, self.ir.Constant(self.ir.IntType(1), 1))
        yield b.zext(number, self.index)
        left.add_incoming(b.and_(left, b.sub(left, self.ir.Constant(kind, 1))), b.block)
        b.branch(head)
        b.position_at_end(after)

    # ── vectors ──
    def splat(self, value: float | Value) -> Value:
        """A vector of equal numbers."""
        if isinstance(value, int | float):
            return self.ir.Constant(self.vector, [float(value)] * LANES)
        b, nothing = self.builder, self.ir.Constant(self.vector, self.ir.Undefined)
        first = b.insert_element(nothing, value, self.ir.Constant(self.ir.IntType(32), 0))
        return b.shuffle_vector(first, nothing, self._lanes([0] * LANES))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a b + c, rounded once."""
        return self.builder.call(self._fma, [a, b, c])

    def load(self, array: Value, offset: Value) -> Value:
        """The vector of numbers from an offset on."""
        return self.builder.load(self.at(array, offset), align=self._align, typ=self.vector)

    def store(self, value: Value, array: Value, offset: Value) -> None:
        """Write a vector of numbers at an offset."""
        self.builder.store(value, self.at(array, offset), align=self._align)

    def clipped(self, count: Value) -> Value:
        """A whole number brought to 0 … 16: how many lanes of a vector are meant."""
        b, lanes = self.builder, self.whole(LANES)
        least = b.select(b.icmp_signed("<", count, self.whole(0)), self.whole(0), count)
        return b.select(b.icmp_signed("<", least, lanes), least, lanes)

    def load_some(self, array: Value, offset: Value, count: Value) -> Value:
        """The first `count` numbers from an offset on, the other lanes zero; nothing else is touched."""
        take = self._intrinsic("llvm.masked.load", self.vector, [self._pointer, self._small, self._mask, self.vector])
        at, align = self.at(array, offset), self.ir.Constant(self._small, self._align)
        return self.builder.call(take, [at, align, self._first(count), self.splat(0.0)])

    def store_some(self, value: Value, array: Value, offset: Value, count: Value) -> None:
        """Write the first `count` numbers of a vector."""
        nothing = self.ir.VoidType()
        put = self._intrinsic("llvm.masked.store", nothing, [self.vector, self._pointer, self._small, self._mask])
        align = self.ir.Constant(self._small, self._align)
        self.builder.call(put, [value, self.at(array, offset), align, self._first(count)])

    def load_line(self, array: Value, offset: Value, vectors: int, counts: Sequence[Value] | None) -> list[Value]:
        """Neighbouring vectors, whole or as many numbers of each as are there."""
        at = [self.plus(offset, number * LANES) for number in range(vectors)]
        if counts is None:
            return [self.load(array, start) for start in at]
        return [self.load_some(array, start, count) for start, count in zip(at, counts, strict=True)]

    def store_line(self, values: Sequence[Value], array: Value, offset: Value, counts: Sequence[Value] | None) -> None:
        """Write neighbouring vectors, whole or in part."""
        for number, value in enumerate(values):
            at = self.plus(offset, number * LANES)
            if counts is None:
                self.store(value, array, at)
            else:
                self.store_some(value, array, at, counts[number])

    def parted(self, vectors: Sequence[Value]) -> list[Value]:
        """n neighbouring vectors as n others, of every n-th number each: two as the even and the odd ones."""
        count = len(vectors)
        return [
            self._picked(vectors, [divmod(lane * count + part, LANES) for lane in range(LANES)])
            for part in range(count)
        ]

    def joined(self, vectors: Sequence[Value]) -> list[Value]:
        """The way back from `parted`."""
        count = len(vectors)
        places = [(place % count, place // count) for place in range(count * LANES)]
        return [self._picked(vectors, places[part * LANES : (part + 1) * LANES]) for part in range(count)]

    def _picked(self, vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
        """One vector whose lanes come from these (vector, lane)."""
        now = vectors[0]
        own = [place for _, place in places]
        for number, vector in enumerate(vectors[1:], start=1):
            lanes = [LANES + place if which == number else own[lane] for lane, (which, place) in enumerate(places)]
            now = self.builder.shuffle_vector(now, vector, self._lanes(lanes))
            own = list(range(LANES))
        return now

    def totals(self, vectors: Sequence[Value]) -> Value:
        """The sums of up to 16 vectors, one in each lane; lanes beyond them are zero."""
        now = [*vectors, *[self.splat(0.0)] * (LANES - len(vectors))]
        low = self._lanes([lane // 2 + LANES * (lane % 2) for lane in range(LANES)])
        high = self._lanes([lane // 2 + LANES // 2 + LANES * (lane % 2) for lane in range(LANES)])
        # Two vectors are merged lane by lane into one that has half of each sum: lane 2 i is the first's, 2 i + 1 the
        # second's. After four passes, bits of the vector's number are the bits of its lane.
        while len(now) > 1:
            half = len(now) // 2
            now = [
                self.builder.fadd(*(self.builder.shuffle_vector(now[i], now[i + half], mask) for mask in (low, high)))
                for i in range(half)
            ]
        return now[0]

    def _first(self, count: Value) -> Value:
        """A mask of the first `count` lanes."""
        b = self.builder
        small = b.trunc(count, self._small)
        kind = self.ir.VectorType(self._small, LANES)
        nothing = self.ir.Constant(kind, self.ir.Undefined)
        one = b.insert_element(nothing, small, self.ir.Constant(self._small, 0))
        every = b.shuffle_vector(one, nothing, self._lanes([0] * LANES))
        return b.icmp_unsigned("<", self._lanes(list(range(LANES))), every)

    def _intrinsic(self, name: str, result: Value, arguments: list[Value]) -> Value:
        full = f"{name}.{self._suffix}.p0"
        if full not in self.module.globals:
            self.ir.Function(self.module, self.ir.FunctionType(result, arguments), full)
        return self.module.globals[full]

    def load_one(self, array: Value, offset: Value) -> Value:
        """One number."""
        return self.builder.load(self.at(array, offset), typ=self.scalar)

    def store_one(self, value: Value, array: Value, offset: Value) -> None:
        """Write one number."""
        self.builder.store(value, self.at(array, offset))

    def load_byte(self, array: Value, offset: Value) -> Value:
        """One byte as a whole number."""
        return self.builder.zext(self.builder.load(self.at(array, offset, self.byte), typ=self.byte), self.index)

    def load_bytes(self, array: Value, offset: Value) -> Value:
        """A vector of bytes."""
        return self.builder.load(self.at(array, offset, self.byte), align=1, typ=self.ir.VectorType(self.byte, LANES))

    def store_bytes(self, value: Value, array: Value, offset: Value) -> None:
        """Write a vector of bytes."""
        self.builder.store(value, self.at(array, offset, self.byte), align=1)

    def bytes_of(self, value: int) -> Value:
        """A vector of equal bytes."""
        return self.ir.Constant(self.ir.VectorType(self.byte, LANES), [value] * LANES)

    def table(self, values: Sequence[int]) -> Value:
        """A constant list of whole numbers."""
        kind = self.ir.ArrayType(self.index, len(values))
        constant = self.ir.GlobalVariable(self.module, kind, self.module.get_unique_name("table"))
        constant.global_constant, constant.linkage = True, "internal"
        constant.initializer = self.ir.Constant(kind, list(values))
        return constant

    def look_up(self, table: Value, position: Value) -> Value:
        """An entry of a table."""
        return self.builder.load(self.at(table, position, self.index), typ=self.index)

    def scratch(self, numbers: int, kind: Value | None = None) -> Value:
        """Memory for numbers (or bytes) that nobody outside sees."""
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(self.ir.ArrayType(kind or self.scalar, numbers))
            slot.align = 64
        # llvmlite remembers the array's type and would refuse to store single numbers into it.
        slot.type = self.ir.PointerType()
        return slot

    def at(self, array: Value, offset: Value, kind: Value | None = None) -> Value:
        """The address of an element."""
        return self.builder.gep(array, [self.whole(offset)], source_etype=kind or self.scalar)

    def positive(self, value: Value) -> Value:
        """max(value, 0), keeping what is not a number."""
        b, zero = self.builder, self.splat(0.0)
        return b.select(b.fcmp_ordered("<=", value, zero), zero, value)

    def larger(self, first: Value, second: Value) -> Value:
        """Where the second is larger than the first, or not a number."""
        b = self.builder
        return b.or_(b.fcmp_ordered(">", second, first), b.fcmp_unordered("uno", second, second))

    def mask(self, condition: Value) -> Value:
        """A vector of conditions as the bits of a whole number."""
        return self.builder.bitcast(condition, self.ir.IntType(LANES))

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """16 vectors as the columns of a square instead of its rows."""
        # In each of four passes, row i and row i + 8 are merged lane by lane; after the fourth, every bit of the
        # row number has been exchanged with a bit of the lane number.
        now = list(rows)
        low = self._lanes([lane // 2 + LANES * (lane % 2) for lane in range(LANES)])
        high = self._lanes([lane // 2 + LANES // 2 + LANES * (lane % 2) for lane in range(LANES)])
        for _ in range(4):
            half = LANES // 2
            merged = [
                self.builder.shuffle_vector(now[i], now[i + half], mask) for i in range(half) for mask in (low, high)
            ]
            now = merged
        return now

    def _lanes(self, lanes: Sequence[int]) -> Value:
        return self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), len(lanes)), list(lanes))

    # ── slots for running sums ──
    def variable(self, start: Value) -> Value:
        """A slot for a value that changes; it becomes a register."""
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(start.type)
        self.builder.store(start, slot)
        return slot

    def get(self, slot: Value, kind: Value | None = None) -> Value:
        """The value in a slot."""
        return self.builder.load(slot, typ=kind or self.vector)

    def put(self, value: Value, slot: Value) -> None:
        """Change the value in a slot."""
        self.builder.store(value, slot)

    def accumulate(self, a: Value, b: Value, slot: Value) -> None:
        """Add a b to a slot."""
        self.put(self.fma(a, b, self.get(slot)), slot)

    def compile(self, *, unroll: bool = True) -> Callable[..., None]:
        """The finished function, for this processor; it takes addresses and the count.

        Without `unroll` loops stay as they were written: with all registers in use, what remains of a loop that LLVM
        unrolled runs several times slower.
        """
        self.builder.ret_void()
        return _compiled(self.module, self.name, self.arrays, unroll)


def _compiled(module: Value, name: str, arrays: int, unroll: bool) -> Callable[..., None]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = unroll
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    _keep_alive.append(engine)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arrays, ctypes.c_int64)
    return kind(engine.get_function_address(name))
