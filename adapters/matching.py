"""Matching of the keys of state dicts with the parameters of weight spaces, whatever the keys and their order."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.checks import checked, listed
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.packing import sizes_in

_ROLE = re.compile(r"(?:(?<=[._/])|^)(weights?|kernels?|w|bias(?:es)?|b)(?=$|[./:])", re.IGNORECASE)
_SHOWN = 16  # keys in a message
_WAYS_OUT = {
    r"_mask$": "of pruned weights, which torch.nn.utils.prune.remove(layer, 'weight') makes plain",
    r"_u$": "of spectral norm, which torch.nn.utils.remove_spectral_norm(layer) takes away",
    r"weight_orig$": "of pruned weights or of spectral norm, which torch.nn.utils.prune.remove(layer, 'weight') or "
    "remove_spectral_norm(layer) takes away",
    r"weight_g$": "of weight norm, which torch.nn.utils.remove_weight_norm(layer) takes away",
    r"\bparametrizations\.": "of torch.nn.utils.parametrize, which remove_parametrizations(layer, 'weight') takes away",
    r"\brunning_(mean|var)$": "of batch norm, which the network does not have: if it is fused there, name the network "
    "as it was before; its fused files are compared with it, too",
    r"\blora_[AB]\.": "of an adapter, which model.merge_and_unload() of peft puts into its base",
    r"\bexperts\.\d+\.": "of experts one by one, which from_pretrained of transformers joins",
    r"(qweight|qzeros|weight_packed|weight_scale(_inv)?|absmax|quant_map|SCB|_packed_params)$": "of quantised weights, "
    "which nothing here unpacks; model.dequantize() of transformers does",
}
_AFTERWARDS = ": save the state dict after that, or name the network as it was before"
_LACKING = {
    r"\bpooler\.": "of a pooler, which the file does not have: name the network without it, by --net module.py:NAME of "
    "a function that returns it, as BertModel(config, add_pooling_layer=False)",
    r"\b(lm_head|embed_out|output_projection)\.": "of a head, which the file does not have: if it is tied to the "
    "embedding, say so, as --net-args tie_word_embeddings=true for hf:FOLDER; if not, the file is one without a head",
    r"\b_extra_state$": "what get_extra_state of its class gave, which the file does not have: save all of it",
}


class OrderError(InvalidValueError):
    """Layers that do not fit in the order of their file, or in the one that was given."""


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
    ``a.bias``; kernel, w, biases, b and ``weight.0`` work too). A layer is before another if the first number in which
    their names differ is smaller, and layers take the places, first or last, where they alone fit by their shapes, so
    that no other order fits. A bias belongs to the weight whose key it shares, so a missing one never moves the others.

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
    expected = keys_by_name(space, names)
    if sorted(keys) == sorted(expected.values()):
        return expected
    places, layers = _layers_of_space(space), _layers_of_keys(keys, ordered)
    if names is not None or not places or len(places) != len(layers):
        raise _unmatched(state, keys, expected, space)
    sizes: Mapping[str, int] = {
        name: node.size for name, node in space.nodes.items() if not node.permutes and node.size is not None
    }
    matched: dict[str, str] = {}
    while places:
        for end in (-1, 0):
            place = places[end]
            # By the numbers in their names, no layer comes after these (at the end) or before them (at the start).
            outer = [
                layer
                for layer in layers
                if not any(_numbered_before(*((layer, other) if end else (other, layer))) for other in layers)
            ]
            fits = {
                layer: known for layer in outer if (known := _sizes_with(state, space, place, layers[layer], sizes))
            }
            if not fits:
                raise _unmatched(state, keys, expected, space)
            if len(fits) == 1:
                break
        else:
            first, second, *_ = [layers[layer][0] for layer in fits]
            raise InvalidValueError(
                f"both {first!r} and {second!r} fit {place[0]}, and their keys carry no number that orders them; "
                f"{_hint(place[0], first)}"
            )
        ((layer, sizes),) = fits.items()
        matched |= zip(place, layers.pop(layer), strict=True)
        places.remove(place)
    return {name: matched[name] for name in space.parameters}


def match_in_order(
    state: Mapping[str, Tensor], space: WeightSpace, order: Sequence[str] | None = None
) -> tuple[dict[str, str], str]:
    """Matches layers that run in a given order, or else in that of the file, which a sentence then says.

    The space's own names count before the order of the file. Shapes prove no order, as two layers may have one shape.

    Args:
        state: key -> tensor, of one network, in the order of its file.
        space: the weight space.
        order: names of layers in the order in which they run, where that is another one.

    Raises:
        ValueError: as `match_names`; for a layer that has not the shape of the space's.
        OrderError: as `in_order`.
    """
    places, layers = _layers_of_space(space), _layers_of_keys(list(state), ordered=False)
    if not places or len(places) != len(layers):
        return match_names(state, space), ""
    names = {layer.strip("._/:"): keys for layer, keys in layers.items()}
    if order is None and set(state) == set(space.parameters):
        name_of = {keys: name for name, keys in names.items()}
        names = {name_of[place]: place for place in places}
    run = _each_once(names, order)
    sizes: Mapping[str, int] | None = {
        name: node.size for name, node in space.nodes.items() if not node.permutes and node.size is not None
    }
    matched: dict[str, str] = {}
    for place, name in zip(places, run, strict=True):
        if sizes is None or (sizes := _sizes_with(state, space, place, names[name], sizes)) is None:
            in_order({name: tuple(state[keys[0]].shape) for name, keys in names.items()}, order)  # or it is the error
            shapes = ", ".join(f"{key} {tuple(state[key].shape)}" for key in names[name])
            raise InvalidValueError(f"{shapes}: no {' and '.join(place)} of {space}")
        matched |= zip(place, names[name], strict=True)
    words = f"Layers are taken in the order {', '.join(run)}: if they run in another one, say it by --order"
    return {name: matched[name] for name in space.parameters}, "" if order is not None else words


def in_order(weights: Mapping[str, tuple[int, ...]], order: Sequence[str] | None = None) -> list[str]:
    """The names of layers in the order in which they run: a given one, or that of the file.

    Args:
        weights: name -> shape of a layer's weight, in the order of the file.
        order: the names in another order, if one was given.

    Raises:
        OrderError: if ``order`` has not each layer once, or a layer does not fit the one before it by its shape.
    """
    names = _each_once(weights, order)
    for before, name in itertools.pairwise(names):
        if not follows(weights[name], weights[before]):
            which = "in the order of the file" if order is None else f"--order {','.join(names)}"
            raise OrderError(
                f"{which}: {name}.weight {weights[name]} does not fit after {before}.weight {weights[before]}; say in "
                f"which order the layers run, as by --order {','.join(sorted(names, key=natural))}"
            )
    return names


def _each_once(names: Collection[str], order: Sequence[str] | None) -> list[str]:
    run = list(names if order is None else order)
    if sorted(run) != sorted(names):
        raise OrderError(f"--order {','.join(run)}: expected each layer once, {listed(names, _SHOWN)}")
    return run


def follows(weight: Sequence[int], before: Sequence[int]) -> bool:
    """Returns whether a weight fits after another by their shapes: linear ones after convolutions too, or a flatten."""
    flattens = len(before) > 2 == len(weight)
    fits = weight[1] == before[0] or (flattens and weight[1] % before[0] == 0)
    return fits and (len(before) > 2 or len(weight) == 2)


@functools.cache
def natural(name: str) -> tuple[tuple[int, str, str], ...]:
    """A name as a key to sort by: 2 is before 10, whatever the number of digits."""
    parts = ((part.lstrip("0"), part) if i % 2 else ("", part) for i, part in enumerate(re.split("([0-9]+)", name)))
    return tuple((len(digits), digits, part) for digits, part in parts)


@checked
def is_ignored(key: str, ignore: str | Collection[str]) -> bool:
    """Returns whether a key is in ``ignore``, or is ``ignore`` where that is one text, or fits a pattern there."""
    return any(fnmatchcase(key, pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore))


def keys_by_name(space: WeightSpace, names: Mapping[str, str] | None) -> dict[str, str]:
    """Parameter of the space -> its key as ``names`` says, where it says nothing its own name."""
    unknown = [name for name in names or {} if name not in space.parameters]
    if unknown:
        raise InvalidValueError(
            f"names= has {', '.join(unknown)}, which {space} has not; its parameters: {', '.join(space.parameters)}"
        )
    return {name: (names or {}).get(name, name) for name in space.parameters}


def way_out_of(keys: Iterable[str], missing: Iterable[str] = ()) -> str:
    """Says in words what to do about keys that are known to be no parameters, or to be missing; else nothing."""
    every = list(keys)
    for pattern, words in _WAYS_OUT.items():
        for key in every:
            if re.search(pattern, key):
                return f". {key} is {words}" + ("" if ":" in words else _AFTERWARDS)
    for pattern, words in _LACKING.items():
        for key in missing:
            if re.search(pattern, key):
                return f". {key} is {words}"
    return ""


def _hint(name: str, key: str) -> str:
    return f"say which is which: names={{{name!r}: {key!r}, ...}}"


def _unmatched(
    state: Mapping[str, Tensor], keys: Sequence[str], expected: Mapping[str, str], space: WeightSpace
) -> InvalidValueError:
    unexpected = [f"{key!r} {tuple(state[key].shape)}" for key in keys if key not in expected.values()]
    missing = {name: space.describe(name).replace("(B, C, ", "(") for name, key in expected.items() if key not in keys}
    return InvalidValueError(
        f"the keys of the state dict do not fit {space} in any order; unexpected: "
        f"{listed(unexpected, _SHOWN) or 'none'}. Missing: {listed(missing.values(), _SHOWN) or 'none'}. If only names "
        f"differ, {_hint(next(iter([*missing, *expected])), 'its key')}; keys that are no parameters: ignore=(key, ...)"
        + way_out_of(key for key in keys if key not in expected.values())
    )


def _layers_of_space(space: WeightSpace) -> list[tuple[str, ...]]:
    """Each weight with its bias, if any; none if a node has several of either, so that the pairing is not clear."""
    weights = {link.target: link.parameter for link in space.links if len(link.ends) == 2}
    biases = {link.target: link.parameter for link in space.links if len(link.ends) == 1 and not link.kernel}
    if {*weights.values(), *biases.values()} != set(space.parameters) or not set(biases) <= set(weights):
        return []
    return [(name, biases[node]) if node in biases else (name,) for node, name in weights.items()]


def _layers_of_keys(keys: Sequence[str], ordered: bool) -> dict[str, tuple[str, ...]]:
    """The same by the layers' names, or numbers where they are ordered; none if a key is neither, or a bias alone."""
    layers: dict[str, dict[bool, str]] = {}
    for key in keys:
        roles = list(_ROLE.finditer(key))
        if not roles:
            return {}
        role = roles[-1]
        layer = layers.setdefault(key[: role.start()] + key[role.end() :], {})
        if layer.setdefault(role.group()[0] in "bB", key) != key:
            return {}
    if not all(False in layer for layer in layers.values()):
        return {}
    return {
        str(i) if ordered else name: tuple(layer[is_bias] for is_bias in sorted(layer))
        for i, (name, layer) in enumerate(layers.items())
    }


def _numbered_before(first: str, second: str) -> bool:
    """Returns whether the first number in which two names differ is smaller in the first one."""
    a, b = next((pair for pair in zip(_parts(first), _parts(second), strict=False) if pair[0] != pair[1]), ("", ""))
    return a.isdecimal() and b.isdecimal() and a.zfill(len(b)) < b.zfill(len(a))  # they may have thousands of digits


@functools.lru_cache
def _parts(name: str) -> list[str]:
    """Splits a name into numbers and the texts between them."""
    return re.findall("[0-9]+|[^0-9]+", name)


def _sizes_with(
    state: Mapping[str, Tensor],
    space: WeightSpace,
    place: Sequence[str],
    layer: Sequence[str],
    sizes: Mapping[str, int],
) -> Mapping[str, int] | None:
    """Node sizes once a layer of the space has the tensors of one of the state dict; None if they do not fit."""
    try:
        for name, key in zip(place, layer, strict=True):
            sizes = sizes_in(space, name, tuple(state[key].shape), sizes)
    except ValueError:  # one of them has no bias, or a shape does not fit
        return None
    return sizes
