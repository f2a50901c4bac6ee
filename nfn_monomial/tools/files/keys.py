"""Keys of state dicts in files: their prefixes, the names of wrappers in them, and tensors of older releases."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError

_WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_RENAMED = {
    r"parametrizations\.(\w+)\.original0$": r"\1_g",
    r"parametrizations\.(\w+)\.original1$": r"\1_v",
    r"(?<![^.])(\w+)_g$": r"parametrizations.\1.original0",
    r"(?<![^.])(\w+)_v$": r"parametrizations.\1.original1",
}


def prefix_of(keys: Collection[str], names: Collection[str], required: Collection[str]) -> str:
    """The prefix of keys before a network's own names, as Lightning's ``model.`` and ``module.`` of ``DataParallel``.

    Keys that begin otherwise are of something else. It is empty if the keys are the network's own, or fit nowhere.

    Args:
        keys: of a state dict.
        names: of the network's tensors.
        required: those of them that have to be there.

    Raises:
        ValueError: if there are several.
    """
    names_below: dict[str, set[str]] = {}
    for key in keys:
        for start in (0, *(dot.end() for dot in re.finditer(r"\.", key))):
            if key[start:] in names:
                names_below.setdefault(key[:start], set()).add(key[start:])
    counts = {prefix: sum(key.startswith(prefix) for key in keys) for prefix in names_below}
    whole = [prefix for prefix, below in names_below.items() if below.issuperset(required)]
    fits = [prefix for prefix in whole if counts[prefix] == len(names_below[prefix])]
    if not fits:
        return max((prefix for prefix, count in counts.items() if count == len(keys)), key=len, default="")
    if len(whole) > 1 and "" not in fits:  # also one that has more than the network, as a student with another head
        places = " and ".join(f"below {prefix}" if prefix else "in front" for prefix in whole)
        raise InvalidValueError(f"the keys {places} all fit this network: save the state dict of one of them alone")
    return "" if "" in fits else fits[0]


def placed(keys: Collection[str], names: Collection[str], required: Collection[str]) -> dict[str, str]:
    """Keys of a state dict -> the network's names for them: without a prefix, and with or without wrappers.

    Keys of something else are left out. Where keys fit after a prefix (`prefix_of`), nothing else is done. Otherwise
    the names of wrappers (compiled and distributed modules) are taken out of the keys and of the network's names.

    Args:
        keys: of a state dict.
        names: of the network's tensors.
        required: those of them that have to be there.

    Raises:
        ValueError: if there are several prefixes.
    """
    prefix = prefix_of(keys, names, required)
    name_of = {key: _renamed(key.removeprefix(prefix), names) for key in keys if key.startswith(prefix)}
    bare_keys, bare_names = _unwrapped(keys), _unwrapped(names)
    wrappers = bare_keys.keys() != set(keys) or bare_names.keys() != set(names)
    if set(required) <= set(name_of.values()) or not wrappers:
        return name_of
    prefix = prefix_of(bare_keys, bare_names, _unwrapped(required))
    wrapped = {_without(start): start for name in names for start in _starts(name)}

    def native(key: str) -> str:
        """Adds the wrappers that the network has around the part of a key."""
        start = next((start for start in reversed(_starts(key)) if start in wrapped), "")
        parts = wrapped.get(start, start), key[len(start) :].lstrip(".")
        return ".".join(part for part in parts if part)

    unwrapped: dict[str, str] = {}
    for key, wrapped_keys in bare_keys.items():
        if key.startswith(prefix):
            full_names = bare_names.get(key.removeprefix(prefix), [native(key.removeprefix(prefix))])
            if len(full_names) != len(wrapped_keys):
                return name_of
            unwrapped |= {full: _renamed(name, names) for full, name in zip(wrapped_keys, full_names, strict=True)}
    return max(name_of, unwrapped, key=lambda way: len(set(way.values()).intersection(names)))


def _without(key: str) -> str:
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


def _unwrapped(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys without wrappers -> the keys, those with fewer of them first."""
    by_bare_key: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: key.count(".")):
        by_bare_key.setdefault(_without(key), []).append(key)
    return by_bare_key


def _starts(key: str) -> list[str]:
    """The beginnings of a dotted name: of no part, of the first, of the first two, and so on to all of it."""
    return ["", *itertools.accumulate(key.split("."), "{}.{}".format)]


def _renamed(key: str, names: Collection[str]) -> str:
    """A key of weight norm as the network has it, which may be of another release of torch; others as they are."""
    if key in names:
        return key
    named = (re.sub(pattern, other, key) for pattern, other in _RENAMED.items() if re.search(pattern, key))
    return next((name for name in named if name in names), key)


def is_of_older_release(key: str, t: Tensor) -> bool:
    """Returns whether older releases of transformers saved a tensor that all networks of one size have alike.

    These are the numbers of positions, the mask of later positions, and the value of masked scores.
    """
    name = key.rpartition(".")[2]
    if name == "position_ids":
        return t.ndim == 2 and bool((t == torch.arange(t.shape[1])).all())
    if re.search(r"att(entio)?n\w*\.bias$", key) and t.ndim == 4 and t.shape[:2] == (1, 1):
        return torch.equal(t[0, 0].bool(), torch.ones(t.shape[2:], dtype=torch.bool).tril())
    return name == "masked_bias" and t.numel() == 1 and float(t) <= -1e4
