"""What a class makes of the state dict in a file by its own `load_state_dict`: tensors, and what else it takes from it.

Most classes copy tensors by their keys. Others have hooks that rename, join or compute them, or an extra state that is
no parameter: for these the class itself is asked, and whatever it has then is what the file says.
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
OWN = frozenset(vars(nn.Module()))
_METHODS = (
    "load_state_dict",
    "_load_from_state_dict",
    "state_dict",
    "_save_to_state_dict",
    "get_extra_state",
    "set_extra_state",
)


def copies_by_key(module: nn.Module) -> bool:
    """Whether to load a state dict into a module is to copy its tensors by their keys, by torch's own methods alone."""
    for part in module.modules():
        hooks = (
            part._load_state_dict_pre_hooks,
            part._load_state_dict_post_hooks,
            part._state_dict_pre_hooks,
            part._state_dict_hooks,
        )
        own = [getattr(type(part), name, None) for name in _METHODS]
        if any(hooks) or any(name in vars(part) for name in _METHODS):
            return False
        if not all(str(getattr(method, "__module__", "")).startswith("torch.nn.modules.") for method in own):
            return False
    return True


def is_extra(key: str) -> bool:
    """Whether a key is that of the extra state of a module, see ``torch.nn.Module.get_extra_state``."""
    return key.rpartition(".")[2] == EXTRA


def _extras(state: Mapping[str, Any]) -> dict[str, str]:
    return {key: described(value) for key, value in state.items() if is_extra(key)}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that are saved, by their places in a module, whatever its state dict calls them."""
    found: dict[str, Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        kept = {name: t for name, t in part._buffers.items() if name not in part._non_persistent_buffers_set}
        named = {f"{path}.{name}".lstrip("."): t for name, t in (part._parameters | kept).items()}
        found |= {key: t for key, t in named.items() if t is not None}
    return found


def settings_of(module: nn.Module) -> dict[str, str]:
    """All attributes of a module and its parts that are no parameters or saved buffers: dotted name -> in words."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        unsaved = {name: t for name, t in part._buffers.items() if name in part._non_persistent_buffers_set}
        for name, value in {**vars(part), **unsaved}.items():
            if name not in OWN:
                found[f"{path}.{name}".lstrip(".")] = described(value)
    return found


def described(value: Any, depth: int = DEEP) -> str:
    """A value in words that are the same for equal values, and hardly for others; of a large tensor, its checksum."""
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
"""Keys of a state dict, and which of their entries, one tensor after the other, make a tensor; None for all of one."""


@dataclass(frozen=True)
class Loaded:
    """A state dict as a module's own `load_state_dict` has read it.

    Attributes:
        module: that has read it.
        tensors: key in the module, by its place -> tensor, of the file's dtype where its entries are the file's.
        sources: key in the module -> whose entries it has, if it has no others.
        settings: extra states, and attributes that the module has then -> in words.
        changed: those of them that are not as they were before.
        missing: keys that the module has looked for; of buffers, it keeps its own.
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
        """Key of the state dict -> tensor, where tensors of the module are to have other values.

        Raises:
            ValueError: for one whose values the module computes from those of the state dict.
        """
        found: dict[str, Tensor] = {}
        for own, value in changed.items():
            if own not in self.sources:
                raise InvalidValueError(
                    f"{type(self.module).__name__} computes {own} from the file when it loads it, so that other values "
                    "cannot be written in the form of the file: save the state dict of the loaded module, and give that"
                )
            keys, at = self.sources[own]
            parts = [found.get(key, state[key].detach()).double() for key in keys]
            flat = torch.cat([part.flatten() for part in parts])
            flat[slice(None) if at is None else at] = value.detach().double().flatten()
            split = torch.split(flat, [part.numel() for part in parts])
            found |= {key: x.reshape(part.shape) for key, x, part in zip(keys, split, parts, strict=True)}
        return found


def load_into(
    module: nn.Module,
    blank: nn.Module,
    state: Mapping[str, Tensor],
    objects: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> Loaded:
    """Load a state dict into a module, and see what has become of what.

    Args:
        module: takes the values; others are made of ``blank``, which is one like it, on which entries are followed.
        blank: is left with values of no meaning.
        state: key, as the module's state dict has it -> tensor.
        objects: the same of what is no tensor, as extra states.
        versions: of the parts of the module that wrote it, by their paths, as torch keeps them.

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
    before, fresh = settings_of(module) | _extras(module.state_dict()), tensors_of(module)
    fresh = {key: t.detach().clone() for key, t in fresh.items()}
    found = load_state(module, state, objects, versions)
    own = {key: t.detach() for key, t in tensors_of(module).items()}
    sources: dict[str, Source] = {
        key: ([key], None)
        for key, t in own.items()
        if key in state and t.shape == state[key].shape and torch.equal(t, state[key].to(t.dtype))
    }
    if any(key not in sources for key, t in own.items() if t.is_floating_point()):
        sources |= _followed(blank, own, sources, state, objects, versions)
    if found is None:  # a method of its own says nothing
        kept = [key for key, t in own.items() if key not in sources and torch.equal(t, fresh.get(key, t))]
        found = kept, []
    missing, unexpected = found
    # what no tensor is made of has gone somewhere else
    used = {key for keys, _ in sources.values() for key in keys}.union(own, unexpected)
    beside = {key: value for key, value in {**state, **objects}.items() if key not in used or is_extra(key)}
    settings = settings_of(module) | {key: described(value) for key, value in beside.items()}
    changed = frozenset(key for key in {*before, *settings} if before.get(key) != settings.get(key))
    tensors = dict(own)
    for key, (keys, at) in sources.items():
        if own[key].is_floating_point():
            tensors[key] = state[keys[0]].detach() if at is None else _entries(state, keys)[at].reshape(own[key].shape)
    unknown = tuple(key for key in unexpected if key in state)
    return Loaded(module, tensors, sources, settings, changed, tuple(missing), unknown)


def load_state(
    module: nn.Module, state: Mapping[str, Tensor], objects: Mapping[str, Any], versions: Mapping[str, Any]
) -> tuple[list[str], list[str]] | None:
    """Load a state dict into a module: what is missing, and what is unexpected; None where it does not say."""
    handed: OrderedDict[str, Any] = OrderedDict((key, t.detach().clone()) for key, t in state.items())
    handed.update(objects)
    handed._metadata = OrderedDict(versions)  # type: ignore[attr-defined]
    takes = inspect.signature(module.load_state_dict).parameters
    found: Any = module.load_state_dict(handed, **({"strict": False} if "strict" in takes else {}))
    if not hasattr(found, "missing_keys"):
        return None
    return list(found.missing_keys), list(found.unexpected_keys)


def _entries(state: Mapping[str, Tensor], keys: Iterable[str]) -> Tensor:
    return torch.cat([state[key].detach().flatten() for key in keys])


def _followed(
    blank: nn.Module,
    own: Mapping[str, Tensor],
    known: Mapping[str, Any],
    state: Mapping[str, Tensor],
    objects: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> dict[str, Source]:
    """Key of a tensor -> the keys of the file whose entries it has, and their numbers in these one after the other.

    The module loads the numbers of the file's entries. Where what it has then are such numbers, and the file's entries
    at them are what it has of the file, it only moves entries. Otherwise it computes them, and nothing is said.
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
    found: dict[str, Source] = {}
    for key, t in tensors_of(blank).items():
        if key in known or not own[key].is_floating_point() or t.shape != own[key].shape:
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
        if keys and torch.equal(_entries(state, keys)[places].to(own[key].dtype), own[key].flatten()):
            found[key] = keys, places
    return found


def inert_kind(value: Any) -> str:
    """The kind of an object of a class in a value, if there is one."""
    if isinstance(value, Inert):
        return kind_of(value)
    if isinstance(value, Mapping):
        return next((kind for kind in map(inert_kind, [*value, *value.values()]) if kind), "")
    if isinstance(value, list | tuple | set | frozenset):
        return next((kind for kind in map(inert_kind, value) if kind), "")
    return ""
