"""The networks that predictors are asked about: modules, state dicts, checkpoints; matched to what was trained for.

Weights say neither how they are wired nor which activations stand between them. So every network is matched to the
weight spaces that a predictor knows, by names and shapes, and what does not fit is refused in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from nfn_monomial import Symmetry, symmetry_of
from nfn_monomial.adapters.matching import OrderError, follows, match_in_order, match_names, natural, prefix_of
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space.packing import is_counter

from .models import NetworkInfo

__all__ = ["Given", "Match", "Network", "given_networks", "in_words", "match", "numbers_of"]

Network: TypeAlias = "nn.Module | Mapping[str, Tensor]"


class Given(NamedTuple):
    """A network as it was given.

    Attributes:
        label: what it is called in messages.
        state: key -> tensor.
        ordered: whether the keys come in the order in which the layers run.
        activations: the symmetries of its activations, where these are known.
        order: names of its layers in the order in which they run, where that is known.
    """

    label: str
    state: Mapping[str, Tensor]
    ordered: bool = False
    activations: frozenset[Symmetry] = frozenset()
    order: Sequence[str] | None = None

    @property
    def kind(self) -> Hashable:
        """Equal for networks that are matched alike."""
        return self.ordered, self.activations, *(self.order or ()), *((key, t.shape) for key, t in self.state.items())


def given_networks(networks: Network | Iterable[Network]) -> list[Given]:
    """Modules and state dicts, one or several.

    Raises:
        TypeError: for anything else, or weights that are no dense tensors of floating point numbers.
        ValueError: for NaN and infinite weights, or none.
    """
    if isinstance(networks, Mapping) or (isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList)):
        networks = [networks]
    if not isinstance(networks, Iterable):
        raise InvalidTypeError(
            f"a {type(networks).__name__} was given; expected modules, state dicts, or tensors (N, 1, *shape) by name"
        )
    return [_given(network, f"network {number}") for number, network in enumerate(networks)]


def _given(network: Any, label: str) -> Given:
    if isinstance(network, nn.Module):
        plain = (nn.Sequential.forward, nn.Flatten.forward)
        chain = all(type(m).forward in plain for m in network.modules() if m._modules)
        return Given(label, numbers_of(network.state_dict(), label), chain, frozenset(_activations(network)))
    if not isinstance(network, Mapping):
        raise InvalidTypeError(f"{label} is a {type(network).__name__}, expected a module or a state dict")
    return Given(label, numbers_of(network, label))


def _activations(module: nn.Module) -> Iterable[Symmetry]:
    for part in module.modules():
        if not part._modules and not isinstance(part, nn.Identity):
            try:
                yield symmetry_of(part)
            except ValueError:  # a layer, or an activation that is not known
                continue


def numbers_of(state: Mapping[Any, Any], label: str) -> dict[str, Tensor]:
    """What may be a parameter: all but counters of batches.

    Raises:
        As `given_networks`; ``label`` says of which network.
    """
    names = {str(key): key for key in state if not is_counter(str(key), state)}
    if not names:
        raise InvalidValueError(f"{label} holds no weights")
    return {name: require_numbers(state[key], f"{label}: {name[:200]}").detach() for name, key in names.items()}


class Match(NamedTuple):
    """What a network is to a predictor.

    Attributes:
        number: of its architecture.
        names: parameter of the space -> key.
        doubt: in words, which order of its layers was taken, where none was given and names do not say it.
    """

    number: int
    names: dict[str, str]
    doubt: str


def match(given: Given, infos: Sequence[NetworkInfo], any_width: bool, reads: str) -> Match:
    """Which of the architectures a network has; ``reads``: they in words.

    Raises:
        ValueError: in words, if it has none of them, or the weights do not tell which.
    """
    fits: dict[int, Match] = {}
    reasons: list[Exception] = []
    for number, info in enumerate(infos):
        try:
            fits[number] = Match(number, *_names(given, info, any_width))
        except (ValueError, TypeError) as error:
            reasons.append(error)
    if not fits:
        found = in_words({key: tuple(t.shape) for key, t in given.state.items()})
        shapes = infos[0].space.shapes()
        known = len(infos) == 1 and found == in_words(shapes)  # then it is not the layers that differ
        told = next((r for r in reasons if isinstance(r, OrderError)), reasons[0] if known else None)
        raise InvalidValueError(
            f"{given.label}: this predictor reads networks of {reads}; this one has {found}" + f": {told}" * bool(told)
        )
    if len({infos[number].space for number in fits}) > 1:
        names = listed(dict.fromkeys(infos[number].activation for number in fits))
        raise InvalidValueError(
            f"{given.label} may have any of {len(fits)} architectures that this predictor reads, with the activations "
            f"{names}: its weights do not tell; use a predictor of networks of one architecture"
        )
    return next(iter(fits.values()))


def _names(given: Given, info: NetworkInfo, any_width: bool) -> tuple[dict[str, str], str]:
    own, aliases = info.space.parameters, dict(info.aliases)
    prefix = prefix_of(given.state, {*own, *aliases}, {*own}.difference(aliases.values()))
    full: dict[str, str] = {}
    for key in given.state:
        inner = key.removeprefix(prefix)
        if key.startswith(prefix) and (name := aliases.get(inner, inner)) is not None:
            full.setdefault(name, key)
    state = {name: given.state[key] for name, key in full.items()}
    if given.ordered or set(state) == set(own):
        names, doubt = match_names(state, info.space, ordered=given.ordered), ""
    else:
        names, doubt = match_in_order(state, info.space, given.order)
    tensors = {name: state[key].float()[None, None] for name, key in names.items()}
    info.space.validate(tensors)
    if not any_width and (wrong := [n for n, shape in info.space.shapes().items() if tensors[n].shape[2:] != shape]):
        raise InvalidValueError(f"{listed(wrong)} are of another width")
    known = {node.symmetry for node in info.space.nodes.values() if node.permutes}
    if other := sorted(map(str, given.activations - known)):
        raise InvalidValueError(f"its activations are of the symmetry {', '.join(other)}")
    return {name: full[key] for name, key in names.items()}, doubt


def in_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """Networks with parameters of these shapes: their sizes and kernels if they are a chain of layers.

    >>> in_words({"0.weight": (16, 1, 3, 3), "0.bias": (16,), "2.weight": (10, 16)})
    '2 layers 1-16-10, kernels 3x3'
    >>> in_words({"q": (4, 8), "k": (4, 8)})
    'k (4, 8), q (4, 8)'
    """
    names = sorted(shapes, key=natural)
    weights = [tuple(shapes[name]) for name in names if len(shapes[name]) > 1]
    sizes = [(w[1], w[0]) for w in weights]
    chain = all(follows(b, a) for a, b in itertools.pairwise(weights))
    if not weights or not chain or len(weights) + sum(len(shape) == 1 for shape in shapes.values()) != len(shapes):
        return listed([f"{name} {tuple(shapes[name])}" for name in names], 6) or "nothing"
    kernels = ["x".join(map(str, w[2:])) for w in weights if len(w) > 2]
    widths = "-".join(map(str, (sizes[0][0], *(out for _, out in sizes))))
    return f"{len(weights)} layer{'s' * (len(weights) > 1)} {widths}" + (
        f", kernels {', '.join(kernels)}" if kernels else ""
    )
