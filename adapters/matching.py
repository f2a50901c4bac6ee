"""Which tensor of a state dict is which parameter of a weight space, whatever the keys and their order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.packing import sizes_in

_ROLE = re.compile(r"(?:(?<=[._/])|^)(weights?|kernels?|w|bias(?:es)?|b)(?=$|[./:])", re.IGNORECASE)
_MAX_STEPS = 10_000
_SHOWN = 16  # keys in a message


class _Layer(NamedTuple):
    """A weight and its bias, by the names they have in a space or by their keys in a state dict; the layer's name."""

    weight: str
    bias: str | None
    name: str = ""


@checked
def match_names(
    state: Mapping[str, Tensor],
    space: WeightSpace,
    *,
    names: Mapping[str, str] | None = None,
    ignore: str | Collection[str] = (),
    ordered: bool = False,
) -> dict[str, str]:
    """Parameter of the space -> key of the state dict.

    If the keys are the space's own names, those count. If not, keys are paired to layers (``a.weight`` with
    ``a.bias``; kernel, w, biases, b and ``weight.0`` work too) and layers are ordered by the first number in which
    their keys differ and by their shapes: every order that fits is tried, and exactly one must be left. A bias
    belongs to the weight whose key it shares, so a missing one never moves the others.

    Args:
        state: key -> tensor, of one network, in any order.
        space: the weight space.
        names: parameter of the space -> key, where the match is not to be found out; a parameter left out has its
            own name.
        ignore: keys, or patterns as ``*.num_batches_tracked``, that are no parameters of the space.
        ordered: whether the keys come in the order in which the layers run, as in ``nn.Sequential``.

    Raises:
        ValueError: listing the keys that are unexpected, missing or ambiguous, and how to name them.
    """
    keys = [key for key in state if not is_ignored(key, ignore)]
    if names is not None:
        return _by_names(keys, space, names)
    if set(keys) == set(space.parameters):
        return {name: name for name in space.parameters}
    wanted, layers = _layers_of_space(space), _layers_of_keys(keys)
    fitting = wanted and len(wanted) == len(layers)
    orders = list(_orders(state, space, wanted, layers, ordered)) if fitting else []
    if not orders:
        raise _unmatched(state, keys, space)
    if len(orders) > 1:
        layer, first, second = next(both for both in zip(wanted, *orders, strict=True) if both[1] != both[2])
        raise InvalidValueError(
            f"both {first.weight!r} and {second.weight!r} fit {layer.weight}, and their keys carry no number that "
            f"orders them; {_hint(layer.weight, first.weight)}"
        )
    matched = {layer.weight: key.weight for layer, key in zip(wanted, orders[0], strict=True)}
    matched |= {layer.bias: key.bias for layer, key in zip(wanted, orders[0], strict=True) if layer.bias and key.bias}
    return {name: matched[name] for name in space.parameters}


@checked
def is_ignored(key: str, ignore: str | Collection[str]) -> bool:
    """Whether a key is in ``ignore``, or is ``ignore`` where that is one text, or fits a pattern there."""
    return any(fnmatchcase(key, pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore))


def _by_names(keys: Sequence[str], space: WeightSpace, names: Mapping[str, str]) -> dict[str, str]:
    unknown = [name for name in names if name not in space.parameters]
    if unknown:
        raise InvalidValueError(
            f"names= has {', '.join(unknown)}, which {space} has not; its parameters: {', '.join(space.parameters)}"
        )
    matched = {name: names.get(name, name) for name in space.parameters}
    used = list(matched.values())
    faults = {
        "used twice": sorted({key for key in used if used.count(key) > 1}),
        "Missing": [f"{key!r} (for {name})" for name, key in matched.items() if key not in keys],
        "Unexpected": [repr(key) for key in keys if key not in used],
    }
    if any(faults.values()):
        text = ". ".join(f"{what}: {', '.join(names)}" for what, names in faults.items() if names)
        raise InvalidValueError(
            f"names= does not fit the keys of the state dict; {text}; leave out keys by ignore=(...)"
        )
    return matched


def _hint(name: str, key: str) -> str:
    return f"say which is which: names={{{name!r}: {key!r}, ...}}"


def _unmatched(state: Mapping[str, Tensor], keys: Sequence[str], space: WeightSpace) -> InvalidValueError:
    missing = [name for name in space.parameters if name not in keys]
    unexpected = [f"{key!r} {tuple(state[key].shape)}" for key in keys if key not in space.parameters]
    described = [space.describe(name).replace("(B, C, ", "(") for name in missing]
    example = missing[0] if missing else next(iter(space.parameters))
    return InvalidValueError(
        f"the keys of the state dict do not fit {space} in any order; unexpected: {_first(unexpected)}. Missing: "
        f"{_first(described)}. If only names differ, {_hint(example, 'its key')}; keys that are no parameters: "
        "ignore=(key, ...)"
    )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more


def _layers_of_space(space: WeightSpace) -> list[_Layer]:
    """Weights with their biases; none if a node has several of either, so that the pairing is not clear."""
    weights = {link.target: link.parameter for link in space.links if len(link.ends) == 2}
    biases = {link.target: link.parameter for link in space.links if len(link.ends) == 1 and not link.kernel}
    if {*weights.values(), *biases.values()} != set(space.parameters) or not set(biases) <= set(weights):
        return []
    return [_Layer(name, biases.get(node)) for node, name in weights.items()]


def _layers_of_keys(keys: Sequence[str]) -> list[_Layer]:
    """The same from the keys of a state dict, in their order; none if a key is neither or a bias has no weight."""
    layers: dict[str, dict[bool, str]] = {}
    for key in keys:
        roles = list(_ROLE.finditer(key))
        if not roles:
            return []
        role = roles[-1]
        layer = layers.setdefault(key[: role.start()] + key[role.end() :], {})
        if layer.setdefault(role.group()[0] in "bB", key) != key:
            return []
    if not all(False in layer for layer in layers.values()):
        return []
    return [_Layer(layer[False], layer.get(True), name) for name, layer in layers.items()]


def _numbered_before(first: str, second: str) -> bool:
    """Whether the first number in which two names differ is smaller in the first one."""
    parts = zip(re.findall(r"\d+|\D+", first), re.findall(r"\d+|\D+", second), strict=False)
    a, b = next(((a, b) for a, b in parts if a != b), ("", ""))
    return a.isdigit() and b.isdigit() and int(a) < int(b)


def _orders(
    state: Mapping[str, Tensor], space: WeightSpace, wanted: list[_Layer], layers: list[_Layer], ordered: bool
) -> Iterator[tuple[_Layer, ...]]:
    """The first two orders of a state dict's layers in which they fit the space's."""
    before = [
        {j for j, other in enumerate(layers) if (j < i if ordered else _numbered_before(other.name, layer.name))}
        for i, layer in enumerate(layers)
    ]
    fixed = {n: node.size for n, node in space.nodes.items() if not node.permutes and node.size is not None}
    pending: list[tuple[tuple[int, ...], dict[str, int]]] = [((), fixed)]
    complete = steps = 0
    while pending and complete < 2:
        chosen, sizes = pending.pop()
        if len(chosen) == len(wanted):
            complete += 1
            yield tuple(layers[i] for i in chosen)
            continue
        steps += 1
        if steps > _MAX_STEPS:
            raise InvalidValueError(
                f"{len(layers)} layers fit {space} in too many orders to try; "
                f"{_hint(wanted[0].weight, layers[0].weight)}"
            )
        for i in range(len(layers)):
            if i not in chosen and before[i] <= set(chosen):
                known = _sizes_with(state, space, wanted[len(chosen)], layers[i], sizes)
                if known is not None:
                    pending.append(((*chosen, i), known))


def _sizes_with(
    state: Mapping[str, Tensor], space: WeightSpace, layer: _Layer, keys: _Layer, sizes: Mapping[str, int]
) -> dict[str, int] | None:
    """Node sizes once a layer of the space has the tensors of one of the state dict; None if they do not fit."""
    known = dict(sizes)
    if (layer.bias is None) != (keys.bias is None):
        return None
    try:
        for name, key in ((layer.weight, keys.weight), (layer.bias, keys.bias)):
            if name is not None and key is not None:
                known = sizes_in(space, name, tuple(state[key].shape), known)
    except ValueError:
        return None
    return known
