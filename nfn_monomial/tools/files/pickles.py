"""Untrusted pickles, read without importing or calling anything that they name.

A pickle is a program for a small stack machine. Most instructions build numbers, texts, lists and dicts; two abilities
make it dangerous: it *imports* names, and it *calls* what it imported. `Unpickler` is the machine of the standard
library without these two.

- **Nothing is imported.** For a name, `Unpickler.find_class` returns the dtype that it stands for, or an `Inert` object
  that knows the name and does nothing. No class and no function ever comes onto the stack.
- **A call is an entry of a table.** All instructions that call look the name up in `_MADE`: functions of this page,
  which make dense tensors and plain containers from checked arguments. The call of any other name makes another `Inert`
  object. So configurations beside weights (``argparse.Namespace``, OmegaConf, a user's classes) are read as attributes,
  and no pickle within a pickle is read (``torch.storage._load_from_bytes``).
- **Only plain containers and `Inert` objects are filled**, so that a file changes no object of this process.
- **No instruction is inherited unseen.** Those of `_PLAIN` and those written here exist, and no others.
- **A file gets no more memory than its own size explains.** A storage has as many bytes as the file has of it, a tensor
  lies in its storage, and copies that a pickle makes of itself are counted. Keys of dicts are of types with few equal
  hashes; `Inert` objects stand for others.

It is the machine written in Python, because the one in C allocates its memo by the largest number that a pickle names:
nine bytes make it take 64 GiB. A file may still hold another value than expected: any nesting of plain values, tensors
and `Inert` objects, maybe within itself. Callers have to check it.
"""

from __future__ import annotations

import math
import pickle
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError

__all__ = ["Inert", "Unpickler", "kind_of", "module_state"]

DIMENSIONS = 64  # that torch works with
KEY_PARTS = 100
NAMES = 2**24  # characters in the keys of a module's state dict, where a key counts as some more
ENTRY = 16

_KINDS = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128, "Untyped": torch.uint8,
}  # fmt: skip
_ODD = ("qint", "quint", "bit")  # types of quantised numbers and of none
# The name of a storage stands for the type of its numbers; one on a GPU is read to the CPU all the same.
_DTYPES = {
    **{f"torch.{n}": t for n, t in vars(torch).items() if isinstance(t, torch.dtype) and not n.startswith(_ODD)},
    **{f"{p}.{k}Storage": value for p in ("torch", "torch.cuda", "torch.storage") for k, value in _KINDS.items()},
}
_PLAIN = [
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4, pickle.BINFLOAT,
    pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
    pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.TUPLE,
    pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.BINGET, pickle.LONG_BINGET,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINPERSID,
]  # fmt: skip


class Inert:
    """Stands for an object that a pickle names, or makes by a call: it has the object's attributes, and no code.

    Items and entries of classes that derive from lists and dicts are left out.

    Attributes:
        pickled_name: of the class or function.
    """

    __slots__ = ("__dict__", "pickled_name")

    def __init__(self, pickled_name: str) -> None:
        self.pickled_name = pickled_name

    def __repr__(self) -> str:
        return f"<{self.pickled_name[:80]}, not imported>"


def kind_of(value: object) -> str:
    """Returns the name of an object's class, for messages."""
    return value.pickled_name if isinstance(value, Inert) else type(value).__name__


def module_state(value: object) -> dict[str, Tensor] | None:
    """Returns the state dict of a module that was pickled whole, by torch's rule for plain modules; else None.

    A class that overrides its state dict is not asked, because nothing of it is imported.
    """
    if not _is_module(value):
        return None
    state: dict[str, Tensor] = {}
    waiting, left = [("", value)], NAMES
    while waiting:
        prefix, module = waiting.pop()
        if not _is_module(module):
            raise InvalidValueError(f"{prefix[:80]} is a {kind_of(module)}, expected a module")
        parts = vars(module)
        unsaved = parts.get("_non_persistent_buffers_set")
        tensors = parts["_parameters"] | {
            name: t for name, t in parts["_buffers"].items() if not (isinstance(unsaved, set) and name in unsaved)
        }
        state |= {f"{prefix}{name}": t for name, t in tensors.items() if isinstance(t, Tensor)}
        inner = [(f"{prefix}{name}.", child) for name, child in parts["_modules"].items() if child is not None]
        left -= sum(len(prefix) + len(str(name)) + ENTRY for name in (*tensors, *parts["_modules"]))
        if left < 0:  # modules within themselves
            raise InvalidValueError(f"the keys of its modules have some {NAMES} characters or more")
        waiting += reversed(inner)
    return state


def _is_module(value: object) -> bool:
    parts = vars(value) if isinstance(value, Inert) else {}
    return all(isinstance(parts.get(kind), dict) for kind in ("_parameters", "_buffers", "_modules"))


@dataclass(frozen=True, repr=False)
class _Storage:
    """A run of numbers in a file."""

    dtype: torch.dtype
    data: bytearray


class Unpickler(pickle._Unpickler):
    """Reads one pickle, see above.

    Args:
        stream: at its start; afterwards it is at its end.
        size: of the file that it is a part of, in bytes.
        storage: returns the bytes of a storage by its key, type and number of bytes; it may fill them later.

    Raises:
        ValueError: by `load`, without the name of the file.
        Exception: of any kind for damaged bytes, see `damaged`.
    """

    stack: list[Any]
    metastack: list[list[Any]]  # of marks, the stacks below
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, stream: BinaryIO, size: int, storage: Callable[[str, torch.dtype, int], bytearray]) -> None:
        super().__init__(stream, encoding="latin1")
        self._budget, self._storage = size, storage

    def find_class(self, module: str, name: str) -> Any:
        """Returns the dtype that a name stands for, or an inert object."""
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        full = f"{module}.{name}"
        if full.startswith("torch._utils._rebuild") and full not in _MADE:
            raise InvalidValueError(
                f"it holds tensors that {name[:80]} makes, expected dense ones: save their .to_dense() or .dequantize()"
            )
        return _DTYPES.get(full) or Inert(full)

    def persistent_load(self, reference: Any) -> Any:
        """Returns a storage of the file; or a class of modules, which old files name beside its source."""
        if isinstance(reference, tuple) and reference[0] == "module":
            return reference[1]
        kind, dtype, key, _device, count, *view = reference
        if kind != "storage" or type(key) is not str or any(view):
            raise InvalidValueError(f"a reference to {shown(kind)}, expected a storage")
        if not isinstance(dtype, torch.dtype) or not _is_size(count):
            raise InvalidValueError(f"a storage of {shown(count)} numbers of type {shown(dtype)}")
        return _Storage(dtype, self._storage(key, dtype, count * dtype.itemsize))

    def _spend(self, copied: int) -> None:
        self._budget -= copied
        if self._budget < 0:
            raise InvalidValueError("it copies its own parts again and again")

    def _call(self) -> None:
        """Looks a call up in the table, or makes an inert object."""
        arguments, called = self.stack.pop(), self.stack.pop()
        if not isinstance(called, Inert) or not isinstance(arguments, tuple):
            raise InvalidValueError(f"a call of a {kind_of(called)}, or with arguments in a {kind_of(arguments)}")
        make = _MADE.get(called.pickled_name)
        if make is not None:
            self._spend(sum(len(part) for part in arguments if isinstance(part, str | bytes | list | tuple)))
        made = Inert(called.pickled_name) if make is None else make(*arguments)
        if isinstance(made, Inert) and arguments:  # in which it differs from others of its class
            vars(made)["arguments of the call"] = arguments
        self.stack.append(made)

    def _call_by_name(self) -> None:
        self.stack.pop()  # arguments by name, which no entry of the table has
        self._call()

    def _build(self) -> None:
        """Sets the attributes of an inert object, or the versions of modules that a state dict carries."""
        state, target = self.stack.pop(), self.stack[-1]
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict) and isinstance(target, Inert):
                self._spend(len(part))
                vars(target).update({name: value for name, value in part.items() if isinstance(name, str)})
            elif isinstance(part, dict) and isinstance(target, OrderedDict) and "_metadata" in part:
                vars(target)["_metadata"] = part["_metadata"]

    def _add(self, items: list[Any]) -> None:
        """Adds items to the container on top of the stack; other objects take none."""
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(map(_key, items))
        elif isinstance(target, dict):
            target.update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def _add_one(self) -> None:
        self._add([self.stack.pop()])

    def _add_entry(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._add([key, value])

    def _add_marked(self) -> None:
        self._add(self.pop_mark())

    def _bytes(self) -> None:
        """Reads a ``bytearray``, whose stated length is believed only if the file is as long."""
        size = int.from_bytes(self.read(8), "little")
        self._spend(size)
        self.stack.append(bytearray(self.read(size)))

    def _frozen_set(self) -> None:
        items = self.pop_mark()  # and another stack
        self.stack.append(frozenset(map(_key, items)))

    dispatch: ClassVar[dict[int, Any]] = {code: pickle._Unpickler.dispatch[code] for (code,) in _PLAIN} | {
        pickle.REDUCE[0]: _call, pickle.NEWOBJ[0]: _call, pickle.NEWOBJ_EX[0]: _call_by_name, pickle.BUILD[0]: _build,
        pickle.APPEND[0]: _add_one, pickle.APPENDS[0]: _add_marked, pickle.ADDITEMS[0]: _add_marked,
        pickle.SETITEM[0]: _add_entry, pickle.SETITEMS[0]: _add_marked, pickle.FROZENSET[0]: _frozen_set,
        pickle.BYTEARRAY8[0]: _bytes,
    }  # fmt: skip


def _key(key: Any) -> Any:
    """Returns a key of a dict or an item of a set; replaces it by an `Inert` object if many may have the same hash.

    A dict of those would take forever. Python keeps the hashes of texts secret, and few whole numbers of 64 bits share
    one. The attribute ``key`` of the object has the key that it stands for.
    """
    if type(key) in (tuple, frozenset):
        plain = len(key) <= KEY_PARTS and all(type(part) is str for part in key)
    elif type(key) is int:
        plain = key.bit_length() <= 64
    else:
        plain = key is None or isinstance(key, str | bytes | bool | float | torch.dtype | torch.device | Inert)
    if plain:
        return key
    stand_in = Inert(type(key).__name__)
    vars(stand_in)["key"] = key
    return stand_in


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < 2**48  # so that no product leaves 64 bits


def _dense(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any = False, hooks: Any = None, dtype: Any = None,
    metadata: Any = None,
) -> Tensor:  # fmt: skip
    """Makes a view of a storage, which must have as many numbers as the tensor: no stride of 0 makes more."""
    if metadata:
        raise InvalidValueError("a tensor that is a conjugate or negative view: save its .resolve_conj().resolve_neg()")
    if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype | None):
        raise InvalidValueError(f"a tensor without a storage, or of type {shown(dtype)}")
    if not len(size) == len(stride) <= DIMENSIONS or not all(map(_is_size, (offset, *size, *stride))):
        raise InvalidValueError(f"a tensor with the sizes {shown(size)} and strides {shown(stride)}")
    kind: torch.dtype = storage.dtype if dtype is None else dtype
    room, count = len(storage.data) // kind.itemsize, math.prod(size)
    end = offset + (1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else 0)
    if max(count, end) > room:
        raise InvalidValueError(f"a tensor of shape {shown(tuple(size))} in a storage of {room} numbers")
    flat = torch.frombuffer(storage.data, dtype=kind, count=room) if room else torch.empty(0, dtype=kind)
    tensor = flat.as_strided(tuple(size), tuple(stride), offset)
    return tensor.requires_grad_() if grad is True and tensor.is_floating_point() else tensor


def _dense_v2(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, metadata: Any = None) -> Tensor:
    return _dense(storage, offset, size, stride, grad, hooks, None, metadata)


def _parameter(tensor: Any, grad: Any, hooks: Any = None, state: Any = None) -> Tensor:
    return nn.Parameter(tensor.detach(), grad is True and tensor.is_floating_point())


_TENSORS: dict[str, Callable[..., Tensor]] = {
    "torch._utils._rebuild_tensor": _dense,
    "torch._utils._rebuild_tensor_v2": _dense_v2,
    "torch._utils._rebuild_tensor_v3": _dense,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}
_MADE: dict[str, Callable[..., Any]] = {
    **_TENSORS,
    # a tensor with attributes, or of a class of its own: the numbers alone
    "torch._tensor._rebuild_from_type_v2": lambda make, kind, arguments, _: _TENSORS[make.pickled_name](*arguments),
    "torch.Size": lambda sizes=(): torch.Size(sizes),
    "torch.device": lambda kind, index=None: torch.device(str(kind)) if index is None else torch.device(kind, index),
    "collections.OrderedDict": lambda items=(): OrderedDict((_key(key), value) for key, value in items),
    "collections.defaultdict": lambda _make=None: {},
    "builtins.set": lambda items=(): set(map(_key, items)),
    "builtins.frozenset": lambda items=(): frozenset(map(_key, items)),
    "_codecs.encode": lambda text, _: str.encode(text, "latin1"),
    "copyreg._reconstructor": lambda kind, base, state: Inert(kind.pickled_name),
}
