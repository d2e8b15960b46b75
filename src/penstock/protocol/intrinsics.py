"""Building blocks of the kernels: compilation by numba, and loads, stores and memcpy on bytes.

The loads and stores are big-endian and unaligned, at a position that the caller has checked: nothing here checks it.

numba's cache tracks only a kernel's own file. After a change of this one, touch the files of the kernels.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.types import int64, uint64

F = TypeVar("F", bound=Callable[..., Any])

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
U8S, I32S, I64S, U64S = types.uint8[::1], types.int32[::1], types.int64[::1], types.uint64[::1]


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile now, or take it from numba's cache: beside the kernel's file, else in the user's cache directory.

    When neither can be written, every start compiles (some seconds); set NUMBA_CACHE_DIR to a writable directory.
    """

    def decorate(function: F) -> F:
        try:
            return numba.njit(signature, cache=True, nogil=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # "cannot cache function: no locator available"
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return decorate


def inlined(function: F) -> F:
    return numba.njit(function)  # type: ignore[no-any-return]


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _load(bits: int, result: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args)
        value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
        value = value if bits == 8 else builder.bswap(value)
        return builder.zext(value, ir.IntType(64)) if bits < 64 else value

    def load(typing_context: Any, array: Any, at: Any) -> Any:  # noqa: ARG001 (numba's signature)
        return result(array, int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args[:2])
        value = builder.trunc(args[2], ir.IntType(bits)) if bits < 64 else args[2]
        value = value if bits == 8 else builder.bswap(value)
        builder.store(value, builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
        return context.get_dummy_value()

    def store(typing_context: Any, array: Any, at: Any, value: Any) -> Any:  # noqa: ARG001
        return types.void(array, int64, int64), generate

    return intrinsic(store)


def _copy(typing_context: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        destination = _pointer(context, builder, signature.args[0], *args[:2])
        origin = _pointer(context, builder, signature.args[2], *args[2:4])
        cgutils.raw_memcpy(builder, destination, origin, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, int64, source, int64, int64), generate


def _leading_zeros(typing_context: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return int64(uint64), generate


# By address: passing an array from function to function costs two atomic operations wherever numba cannot prove that
# it stays alive, which in a scanner's branches is everywhere. The caller's array must stay alive meanwhile.


def _address_of(typing_context: Any, array: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return int64(array), generate


def _peek(bits: int, result: Any, *, is_native: bool = False) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
        value = value if bits == 8 or is_native else builder.bswap(value)
        return builder.zext(value, ir.IntType(64)) if bits < 64 else value

    def peek(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
        return result(int64), generate

    return intrinsic(peek)


address_of = intrinsic(_address_of)
peek8, peek16, peek32, peek64 = _peek(8, int64), _peek(16, int64), _peek(32, int64), _peek(64, uint64)
peek_number = _peek(64, int64, is_native=True)
"""An element of an array of int64."""
peek32_little, peek64_little = _peek(32, uint64, is_native=True), _peek(64, uint64, is_native=True)
"""On the machines that Spark and we run on."""
leading_zeros = intrinsic(_leading_zeros)
load8, load16, load32 = _load(8, int64), _load(16, int64), _load(32, int64)
load64, load64_signed = _load(64, uint64), _load(64, int64)
store8, store16, store32, store64 = _store(8), _store(16), _store(32), _store(64)
copy = intrinsic(_copy)
