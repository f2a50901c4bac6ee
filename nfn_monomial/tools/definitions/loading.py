"""State dicts loaded by a class's own `load_state_dict`: its tensors, and the settings that it takes from the file.

Most classes copy tensors by their keys. Others have hooks that rename, join or compute them, or an extra state that is
no parameter: these classes load the file themselves, and the tensors and settings that they then have are used.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.pickles import Inert, kind_of

__all__ = ["Loaded", "copies_by_key", "described", "inert_kind", "is_extra", "load_into", "load_state", "tensors_of"]

EXTRA = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX
DEEP = 6  # attributes of attributes that are looked at
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_METHODS = (
    "load_state_dict",
    "_load_from_state_dict",
    "state_dict",
    "_save_to_state_dict",
    "get_extra_state",
    "set_extra_state",
)


def copies_by_key(module: nn.Module) -> bool:
    """Checks whether a module loads a state dict by torch's own methods alone, which copy tensors by their keys."""
    for part in module.modules():
        hooks = (
            part._load_state_dict_pre_hooks,
            part._load_state_dict_post_hooks,
            part._state_dict_pre_hooks,
            part._state_dict_hooks,
        )
        methods = [getattr(type(part), name, None) for name in _METHODS]
        if any(hooks) or any(name in vars(part) for name in _METHODS):
            return False
        if not all(str(getattr(method, "__module__", "")).startswith("torch.nn.modules.") for method in methods):
            return False
    return True


def is_extra(key: str) -> bool:
    """Checks whether a key is that of a module's extra state, see ``torch.nn.Module.get_extra_state``."""
    return key.rpartition(".")[2] == EXTRA


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and saved buffers by their paths in a module, whatever its state dict calls them."""
    tensors: dict[str, Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        kept = {name: t for name, t in part._buffers.items() if name not in part._non_persistent_buffers_set}
        named = {f"{path}.{name}".lstrip("."): t for name, t in (part._parameters | kept).items()}
        tensors |= {key: t for key, t in named.items() if t is not None}
    return tensors


def settings_of(module: nn.Module) -> dict[str, str]:
    """Describes all attributes of a module and its parts but parameters and saved buffers: dotted name -> in words."""
    settings = {}
    for path, part in module.named_modules(remove_duplicate=False):
        unsaved = {name: t for name, t in part._buffers.items() if name in part._non_persistent_buffers_set}
        for name, value in {**vars(part), **unsaved}.items():
            if name not in OF_EVERY_MODULE:
                settings[f"{path}.{name}".lstrip(".")] = described(value)
    return settings


def described(value: Any, depth: int = DEEP) -> str:
    """Describes a value: the same for equal values, and hardly ever for others; by a checksum for a large tensor."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, Tensor):
        if value.is_meta or value.layout != torch.strided:
            return f"a tensor {tuple(value.shape)}"
        if value.numel() == 1:
            return repr(value.item())
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()[:8]}"
    if isinstance(value, torch.dtype | torch.device | torch.Size):
        return str(value)
    if inspect.isroutine(value) or isinstance(value, type):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if isinstance(value, Inert):
        return f"{value!r} {described(vars(value), depth - 1) if depth else ''}"
    if depth == 0 or isinstance(value, nn.Module):  # parts are looked at by themselves
        return type(value).__name__
    if isinstance(value, Mapping):
        entries = (f"{described(k, depth - 1)}: {described(v, depth - 1)}" for k, v in value.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(described(x, depth - 1) for x in value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(described(x, depth - 1) for x in value) + "]"
    if callable(getattr(value, "tobytes", None)):
        return f"{type(value).__name__} {hashlib.sha256(value.tobytes()).hexdigest()[:8]}"
    return type(value).__name__ + described(getattr(value, "__dict__", None) or {}, depth - 1)


Source: TypeAlias = "tuple[list[str], Tensor | None]"
"""Keys of a state dict, and the numbers of their entries, one tensor after the other, that make a tensor; None for all
entries of a single key."""


@dataclass(frozen=True)
class Loaded:
    """A state dict as a module's own `load_state_dict` has read it.

    Attributes:
        module: that has read it.
        tensors: path in the module -> tensor, in the file's dtype if its entries are the file's.
        sources: path in the module -> the entries of the file that it consists of, if it has no others.
        settings: extra states, and attributes of the module afterwards -> in words.
        changed: names of the settings that loading has changed.
        missing: keys that the module has looked for in vain; it keeps its own buffers.
        unexpected: keys that it has not looked at.
    """

    module: nn.Module
    tensors: Mapping[str, Tensor]
    sources: Mapping[str, Source]
    settings: Mapping[str, str]
    changed: frozenset[str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def back(self, state: Mapping[str, Tensor], changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the entries of the state dict for which tensors of the module have other values.

        Raises:
            ValueError: for a tensor whose values the module computes from the state dict.
        """
        entries: dict[str, Tensor] = {}
        for path, value in changed.items():
            if path not in self.sources:
                raise InvalidValueError(
                    f"{type(self.module).__name__} computes {path} from the file when it loads it, so that other "
                    "values cannot be written in the form of the file: save the state dict of the loaded module, and "
                    "give that"
                )
            keys, at = self.sources[path]
            parts = [entries.get(key, state[key].detach()).double() for key in keys]
            flat = torch.cat([part.flatten() for part in parts])
            flat[slice(None) if at is None else at] = value.detach().double().flatten()
            split = torch.split(flat, [part.numel() for part in parts])
            entries |= {key: x.reshape(part.shape) for key, x, part in zip(keys, split, parts, strict=True)}
        return entries


def load_into(
    module: nn.Module,
    blank: nn.Module,
    state: Mapping[str, Tensor],
    objects: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> Loaded:
    """Loads a state dict into a module, and traces each of its tensors back to entries of the file.

    Args:
        module: takes the values.
        blank: another one like it, in which entries are traced; it is left with values of no meaning.
        state: key of the module's state dict -> tensor.
        objects: the same for entries that are no tensors, such as extra states.
        versions: of the parts of the module that wrote it, by their paths, as torch stores them.

    Raises:
        ValueError: for an extra state that is an object of some class.
        Exception: whatever the module's own methods raise.
    """
    for key, value in objects.items():
        if is_extra(key) and (kind := inert_kind(value)):
            raise InvalidValueError(
                f"{key} holds an object of the class {kind}, which is not unpickled: return tensors, numbers and texts "
                "from get_extra_state"
            )
    extras = {key: described(value) for key, value in module.state_dict().items() if is_extra(key)}
    before, fresh = settings_of(module) | extras, {key: t.detach().clone() for key, t in tensors_of(module).items()}
    misfits = load_state(module, state, objects, versions)
    after = {key: t.detach() for key, t in tensors_of(module).items()}
    sources: dict[str, Source] = {
        key: ([key], None)
        for key, t in after.items()
        if key in state and t.shape == state[key].shape and torch.equal(t, state[key].to(t.dtype))
    }
    if any(key not in sources for key, t in after.items() if t.is_floating_point()):
        sources |= _traced(blank, after, sources, state, objects, versions)
    if misfits is None:  # the class's own method does not report any
        kept = [key for key, t in after.items() if key not in sources and torch.equal(t, fresh.get(key, t))]
        misfits = kept, []
    missing, unexpected = misfits
    # an entry from which no tensor is made has become a setting
    used = {key for keys, _ in sources.values() for key in keys}.union(after, unexpected)
    beside = {key: value for key, value in {**state, **objects}.items() if key not in used or is_extra(key)}
    settings = settings_of(module) | {key: described(value) for key, value in beside.items()}
    changed = frozenset(key for key in {*before, *settings} if before.get(key) != settings.get(key))
    tensors = dict(after)
    for key, (keys, at) in sources.items():
        if after[key].is_floating_point():
            whole = at is None
            tensors[key] = state[keys[0]].detach() if whole else _entries(state, keys)[at].reshape(after[key].shape)
    unknown = tuple(key for key in unexpected if key in state)
    return Loaded(module, tensors, sources, settings, changed, tuple(missing), unknown)


def load_state(
    module: nn.Module, state: Mapping[str, Tensor], objects: Mapping[str, Any], versions: Mapping[str, Any]
) -> tuple[list[str], list[str]] | None:
    """Loads a state dict into a module; returns the missing and the unexpected keys, or None if it does not say."""
    handed: OrderedDict[str, Any] = OrderedDict((key, t.detach().clone()) for key, t in state.items())
    handed.update(objects)
    handed._metadata = OrderedDict(versions)  # type: ignore[attr-defined]
    takes = inspect.signature(module.load_state_dict).parameters
    misfits: Any = module.load_state_dict(handed, **({"strict": False} if "strict" in takes else {}))
    if not hasattr(misfits, "missing_keys"):
        return None
    return list(misfits.missing_keys), list(misfits.unexpected_keys)


def _entries(state: Mapping[str, Tensor], keys: Iterable[str]) -> Tensor:
    return torch.cat([state[key].detach().flatten() for key in keys])


def _traced(
    blank: nn.Module,
    after: Mapping[str, Tensor],
    known: Mapping[str, Any],
    state: Mapping[str, Tensor],
    objects: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> dict[str, Source]:
    """Finds the entries of the file that tensors consist of.

    The module loads the numbers of the file's entries in their place. If a tensor then has only such numbers, and it
    has the file's entries with these numbers when it loads the file itself, the module only moves entries. Otherwise
    it computes the tensor, which then is left out.
    """
    firsts, count = {}, 1
    numbered: dict[str, Tensor] = {}
    for key, t in state.items():
        numbered[key] = t
        if t.is_floating_point():
            firsts[key] = count
            numbered[key] = torch.arange(count, count + t.numel(), dtype=torch.float64).reshape(t.shape)
            count += t.numel()
    blank = blank.double()
    try:
        load_state(blank, numbered, objects, versions)
    except Exception:  # of any kind: what a module computes may not go with such numbers
        return {}
    sources: dict[str, Source] = {}
    for key, t in tensors_of(blank).items():
        if key in known or not after[key].is_floating_point() or t.shape != after[key].shape:
            continue
        numbers = t.detach().flatten()
        if not bool(((numbers == numbers.round()) & (numbers >= 1) & (numbers < count)).all()):
            continue
        at, keys, offset = numbers.long(), [], 0
        places = torch.empty_like(at)
        for name, first in firsts.items():
            inside = (at >= first) & (at < first + state[name].numel())
            if bool(inside.any()):
                places = torch.where(inside, at - first + offset, places)
                keys.append(name)
                offset += state[name].numel()
        if keys and torch.equal(_entries(state, keys)[places].to(after[key].dtype), after[key].flatten()):
            sources[key] = keys, places
    return sources


def inert_kind(value: Any) -> str:
    """Returns the class of an object in a value that was not unpickled; empty if there is none."""
    if isinstance(value, Inert):
        return kind_of(value)
    if isinstance(value, Mapping):
        return next((kind for kind in map(inert_kind, [*value, *value.values()]) if kind), "")
    if isinstance(value, list | tuple | set | frozenset):
        return next((kind for kind in map(inert_kind, value) if kind), "")
    return ""
