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
    """A weight and its bias, by the names they have in a space or by their keys in a state dict."""

    weight: str
    bias: str | None


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
    wanted, found = _layers_of_space(space), _layers_of_keys(keys)
    if wanted is None or found is None or len(wanted) != len(found):
        raise _unmatched(state, keys, space)
    solutions = list(_assignments(state, space, wanted, found, _precedence(found, keys, ordered)))
    if not solutions:
        raise _unmatched(state, keys, space)
    if len(solutions) > 1:
        differing = next(i for i, (a, b) in enumerate(zip(*solutions, strict=True)) if a != b)
        first, second = (solution[differing].weight for solution in solutions)
        raise InvalidValueError(
            f"both {first!r} and {second!r} fit {wanted[differing].weight}, and their keys carry no number that orders "
            f"them; {_hint(wanted[differing].weight, first)}"
        )
    matched = {layer.weight: key.weight for layer, key in zip(wanted, solutions[0], strict=True)}
    matched |= {w.bias: k.bias for w, k in zip(wanted, solutions[0], strict=True) if w.bias and k.bias}
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
    twice = sorted({key for key in matched.values() if list(matched.values()).count(key) > 1})
    missing = [f"{key!r} (for {name})" for name, key in matched.items() if key not in keys]
    unexpected = [repr(key) for key in keys if key not in matched.values()]
    if twice or missing or unexpected:
        raise InvalidValueError(
            "names= does not fit the keys of the state dict; "
            + (f"used twice: {', '.join(twice)}. " if twice else "")
            + (f"Missing: {', '.join(missing)}. " if missing else "")
            + (f"Unexpected: {', '.join(unexpected)}; leave out keys by ignore=(...). " if unexpected else "")
        )
    return matched


def _hint(name: str, key: str) -> str:
    return f"say which is which: names={{{name!r}: {key!r}, ...}}"


def _unmatched(state: Mapping[str, Tensor], keys: Sequence[str], space: WeightSpace) -> InvalidValueError:
    unexpected = [f"{key!r} {tuple(state[key].shape)}" for key in keys if key not in space.parameters]
    missing = [space.describe(name).replace("(B, C, ", "(") for name in space.parameters if name not in keys]
    example = next((name for name in space.parameters if name not in keys), next(iter(space.parameters)))
    return InvalidValueError(
        f"the keys of the state dict do not fit {space} in any order; "
        + (f"unexpected: {_some(unexpected)}. " if unexpected else "")
        + (f"Missing: {_some(missing)}. " if missing else "")
        + f"If only names differ, {_hint(example, 'its key')}; keys that are no parameters: ignore=(key, ...)"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)


def _layers_of_space(space: WeightSpace) -> list[_Layer] | None:
    """Weights with their biases, or None if a node has several of either, so that the pairing is not clear."""
    weights = {link.target: link.parameter for link in space.links if len(link.ends) == 2}
    biases = {link.target: link.parameter for link in space.links if len(link.ends) == 1 and not link.kernel}
    named = {*weights.values(), *biases.values()}
    if named != set(space.parameters) or not set(biases) <= set(weights):
        return None
    return [_Layer(name, biases.get(node)) for node, name in weights.items()]


def _layers_of_keys(keys: Sequence[str]) -> list[_Layer] | None:
    """The same from the keys of a state dict, in their order; None if a key is neither or a bias has no weight."""
    pairs: dict[str, dict[str, str]] = {}
    for key in keys:
        found = list(_ROLE.finditer(key))
        if not found:
            return None
        role, place = found[-1].group()[0].lower(), _layer_name(key)
        if ("b" if role == "b" else "w") in pairs.setdefault(place, {}):
            return None
        pairs[place]["b" if role == "b" else "w"] = key
    if any("w" not in pair for pair in pairs.values()):
        return None
    return [_Layer(pair["w"], pair.get("b")) for pair in pairs.values()]


def _layer_name(key: str) -> str:
    role = list(_ROLE.finditer(key))[-1]
    return key[: role.start()] + key[role.end() :]


def _precedence(layers: Sequence[_Layer], keys: Sequence[str], ordered: bool) -> dict[int, set[int]]:
    """For each layer those that surely come before it."""
    if ordered:
        position = [keys.index(layer.weight) for layer in layers]
        return {i: {j for j in range(len(layers)) if position[j] < position[i]} for i in range(len(layers))}
    split = [re.findall(r"\d+|\D+", _layer_name(layer.weight)) for layer in layers]
    return {i: {j for j in range(len(layers)) if _numbered_before(split[j], split[i])} for i in range(len(layers))}


def _numbered_before(first: Sequence[str], second: Sequence[str]) -> bool:
    a, b = next(((a, b) for a, b in zip(first, second, strict=False) if a != b), ("", ""))
    return a.isdigit() and b.isdigit() and int(a) < int(b)


def _assignments(
    state: Mapping[str, Tensor],
    space: WeightSpace,
    wanted: Sequence[_Layer],
    found: Sequence[_Layer],
    before: Mapping[int, set[int]],
) -> Iterator[tuple[_Layer, ...]]:
    """The first two ways to lay the found layers onto the wanted ones."""
    fixed = {n: node.size for n, node in space.nodes.items() if not node.permutes and node.size is not None}
    pending: list[tuple[tuple[int, ...], dict[str, int]]] = [((), fixed)]
    solutions = steps = 0
    while pending and solutions < 2:
        chosen, sizes = pending.pop()
        if len(chosen) == len(wanted):
            solutions += 1
            yield tuple(found[i] for i in chosen)
            continue
        steps += 1
        if steps > _MAX_STEPS:
            raise InvalidValueError(
                f"{len(found)} layers fit {space} in too many orders to try; {_hint(wanted[0].weight, found[0].weight)}"
            )
        for i in range(len(found)):
            if i not in chosen and before[i] <= set(chosen):
                grown = _fit(state, space, wanted[len(chosen)], found[i], sizes)
                if grown is not None:
                    pending.append(((*chosen, i), grown))


def _fit(
    state: Mapping[str, Tensor], space: WeightSpace, layer: _Layer, keys: _Layer, sizes: Mapping[str, int]
) -> dict[str, int] | None:
    """Node sizes after laying one layer's keys onto a layer of the space; None if they do not fit."""
    grown = dict(sizes)
    if (layer.bias is None) != (keys.bias is None):
        return None
    for name, key in zip(layer, keys, strict=True):
        if name is not None and key is not None:
            try:
                grown = sizes_in(space, name, tuple(state[key].shape), grown)
            except ValueError:
                return None
    return grown
