"""What the pickle in a torch file says, interpreted: a table of instructions and one of names, and no others.

`pickletools` takes the bytes apart without running them. The instructions are those that ``torch.save`` writes
(protocol 2), and a name stands for one of the functions of this page: the ways in which torch writes a dense tensor.
Anything else is an error, or, where it is expected, an `Inert` object.
"""

from __future__ import annotations

import io
import math
import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.errors import InvalidValueError

from .files import shown
from .matching import is_ignored

__all__ = ["Inert", "Storage", "read_pickle"]


class Inert:
    """Stands for a pickled object of a class that is not imported: its attributes as they were, and no code."""

    def __init__(self, *args: object) -> None: ...


class Storage(NamedTuple):
    """A run of numbers in a file, by its key there."""

    key: str
    dtype: torch.dtype
    numbers: int

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self.numbers * self.itemsize


class _Held(NamedTuple):
    """A storage and its bytes."""

    storage: Storage
    data: bytearray


_DTYPES: dict[str, torch.dtype] = {
    f"torch.{name}": dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and not any(kind in name for kind in ("quint", "qint", "bits"))
}
_KINDS = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128, "Untyped": torch.uint8,
}  # fmt: skip
# Names of storages stand for the type of their numbers; those on a GPU are read to the CPU all the same.
_STORAGES = {
    f"{place}.{kind}Storage": dtype
    for kind, dtype in _KINDS.items()
    for place in ("torch", "torch.cuda", "torch.storage")
}


def _tensor(held: Any, offset: Any, size: Any, stride: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A view of a storage, which has to have room for as many numbers as the tensor: no stride of 0 makes more."""
    if not isinstance(held, _Held):
        raise InvalidValueError("a tensor without a storage")
    dtype = dtype or held.storage.dtype
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise InvalidValueError(f"a tensor with the sizes {shown(size)} and strides {shown(stride)}")
    room = held.storage.nbytes // dtype.itemsize
    count = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else offset
    if count > room or last + bool(count) > room:
        raise InvalidValueError(f"a tensor of shape {shown(tuple(size))} in a storage of {room} numbers")
    flat = torch.frombuffer(held.data, dtype=dtype, count=room) if room else torch.empty(0, dtype=dtype)
    return flat.as_strided(tuple(size), tuple(stride), offset)


def _marked(tensor: Tensor, requires_grad: object) -> Tensor:
    return tensor.requires_grad_() if requires_grad is True and tensor.is_floating_point() else tensor


def _tensor_v2(held: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, metadata: Any = None) -> Tensor:
    if metadata:
        raise InvalidValueError("a tensor that is a conjugate or negative view: save its .resolve_conj()")
    return _marked(_tensor(held, offset, size, stride), grad)


def _tensor_v3(
    held: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Tensor:
    if metadata or not isinstance(dtype, torch.dtype):
        raise InvalidValueError("a tensor of an unknown kind")
    return _marked(_tensor(held, offset, size, stride, dtype), grad)


def _parameter(tensor: Any, grad: Any, hooks: Any = None, state: Any = None) -> nn.Parameter:
    if not isinstance(tensor, Tensor):
        raise InvalidValueError("a parameter without a tensor")
    return nn.Parameter(tensor.detach(), grad is True and tensor.is_floating_point())


def _encoded(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise InvalidValueError("bytes of an unknown encoding")
    return text.encode("latin1")


_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "collections.OrderedDict": OrderedDict[Any, Any],  # its items follow
    "torch.Size": lambda sizes=(): torch.Size(sizes),
    "torch.device": lambda kind, index=None: torch.device(str(kind)) if index is None else torch.device(kind, index),
    "builtins.set": lambda items=(): {_key(item) for item in items},
    "_codecs.encode": _encoded,
}
_OTHER_TENSORS = {
    "torch._utils._rebuild_sparse_tensor": "sparse", "torch._utils._rebuild_nested_tensor": "nested",
    "torch._utils._rebuild_qtensor": "quantised", "torch._utils._rebuild_meta_tensor_no_storage": "meta",
    "torch._utils._rebuild_wrapper_subclass": "subclass", "torch._utils._rebuild_device_tensor_from_numpy": "device",
}  # fmt: skip


def _named(module: str, name: str, inert: Collection[str]) -> Any:
    """What a name in a file stands for here."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    full = f"{module}.{name}"
    for table in (_CALLS, _STORAGES, _DTYPES):
        if full in table:
            return table[full]
    if is_ignored(full, inert):
        return Inert
    if full in _OTHER_TENSORS:
        raise InvalidValueError(
            f"it holds {_OTHER_TENSORS[full]} tensors, expected dense ones: save their .to_dense() or .dequantize()"
        )
    raise InvalidValueError(
        f"it is no plain state dict: reading it would run pickled code ({full[:80]}), which is refused"
    )


def _key(key: Any) -> Any:
    """A key of a dict: what is hashed in no time."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(part is None or isinstance(part, str | int | float | bytes) for part in parts):
        raise InvalidValueError(f"a key that is a {type(key).__name__}")
    return key


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_ARGUMENTS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING"}
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack that the instructions of a pickle work on, and what they put aside."""

    def __init__(self, storage: Callable[[Storage], bytearray], inert: Collection[str], budget: int) -> None:
        self.storage, self.inert, self.budget = storage, inert, budget
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self._last(_TUPLES[name])))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif (own := getattr(self, f"_{name.lower()}", None)) is not None:
            own(argument)
        else:
            raise InvalidValueError(f"the instruction {name}, which torch.save does not write")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count + (self.marks[-1] if self.marks else 0):
            raise InvalidValueError("an instruction without what it works on")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def _marked(self) -> list[Any]:
        items = self.stack[self.marks[-1] :]
        del self.stack[self.marks.pop() :]
        return items

    def _proto(self, _: Any) -> None:
        """The protocol: instructions tell for themselves."""

    def _mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _append(self, _: Any) -> None:
        self._extend(self._last(1))

    def _appends(self, _: Any) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise InvalidValueError(f"items for a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(items)

    def _setitem(self, _: Any) -> None:
        self._update(self._last(2))

    def _setitems(self, _: Any) -> None:
        self._update(self._marked())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict | Inert):
            raise InvalidValueError(f"entries for a {type(target).__name__}")
        if isinstance(target, dict):  # entries of inert objects are left out
            target.update({_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)})

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_named(module, name, self.inert))

    def _reduce(self, _: Any) -> None:
        called, arguments = self._last(2)
        if not isinstance(arguments, tuple) or not any(called is known for known in (Inert, *_CALLS.values())):
            raise InvalidValueError(f"a call of {shown(called)}")
        self.budget -= sum(len(part) for part in arguments if isinstance(part, str | bytes | list | tuple))
        if self.budget < 0:
            raise InvalidValueError("it copies its own parts again and again")
        self.stack.append(called(*arguments))

    _newobj = _reduce

    def _build(self, _: Any) -> None:
        (state,) = self._last(1)
        target = self.stack[-1]
        if isinstance(target, Inert):
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    vars(target).update({str(name): value for name, value in part.items()})
        elif isinstance(target, OrderedDict) and isinstance(state, dict):
            vars(target).update({k: v for k, v in state.items() if k == "_metadata"})  # versions of modules
        else:
            raise InvalidValueError(f"a state for a {type(target).__name__}")

    def _binpersid(self, _: Any) -> None:
        (found,) = self._last(1)
        kind, dtype, key, _place, count, *view = found
        if kind != "storage" or not isinstance(dtype, torch.dtype) or any(view):
            raise InvalidValueError(f"a reference to {shown(kind)}, expected a storage")
        if type(count) is not int or not 0 <= count < 2**48:
            raise InvalidValueError(f"a storage of {shown(count)} numbers")
        storage = Storage(str(key), dtype, count)
        self.stack.append(_Held(storage, self.storage(storage)))


def read_pickle(
    stream: BinaryIO | io.BytesIO, size: int, storage: Callable[[Storage], bytearray], inert: Collection[str] = ()
) -> Any:
    """What a pickle says; the stream is behind it afterwards.

    Args:
        stream: which holds it.
        size: in bytes, of what it is a part of.
        storage: gives the bytes of a storage, which it may fill later.
        inert: patterns of names that may occur although they are not known here, see `Inert`.

    Raises:
        ValueError: without the name of the file, if it needs more than this page knows.
        Exception: what damaged bytes lead to, see `files.damaged`.
    """
    machine = _Machine(storage, inert, size)
    for instruction, argument, _ in pickletools.genops(stream):
        if instruction.name == "STOP":
            break
        machine.run(instruction.name, argument)
    (content,) = machine.stack
    if machine.marks:
        raise InvalidValueError("it ends within a part")
    return content
