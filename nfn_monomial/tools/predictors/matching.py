"""Networks that predictors are asked about, matched with those that they were trained on.

Weights show neither how they are wired nor which activations are between them. So every network is matched with the
weight spaces that a predictor knows, by names and shapes, and one that does not fit is refused with a reason.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from nfn_monomial import Symmetry, symmetry_of
from nfn_monomial.adapters.matching import OrderError, follows, match_in_order, match_names, natural
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space.packing import is_counter
from nfn_monomial.tools.files.keys import prefix_of

from .models import NetworkInfo

__all__ = ["Candidate", "Match", "Network", "candidates", "in_words", "match", "numbers_of"]

Network: TypeAlias = "nn.Module | Mapping[str, Tensor]"
Match: TypeAlias = "tuple[int, dict[str, str], str]"
"""The number of a network's architecture, parameter of the space -> key, and a note on the order of its layers."""


class Candidate(NamedTuple):
    """A network that is to be matched.

    Attributes:
        label: its name in messages.
        state: key -> tensor.
        ordered: whether the keys are in the order in which the layers run.
        activations: the symmetries of its activations, if they are known.
        order: names of its layers in the order in which they run, if that is known.
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


def candidates(networks: Network | Iterable[Network]) -> list[Candidate]:
    """Lists modules and state dicts, one or several.

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
    listing = []
    for number, network in enumerate(networks):
        label, chain, symmetries = f"network {number}", False, set()
        state: Any = network
        if isinstance(network, nn.Module):
            plain = (nn.Sequential.forward, nn.Flatten.forward)
            chain = all(type(m).forward in plain for m in network.modules() if m._modules)
            state = network.state_dict()
            for part in network.modules():
                if not part._modules and not isinstance(part, nn.Identity):
                    with contextlib.suppress(ValueError):  # a layer, or an activation that is not known
                        symmetries.add(symmetry_of(part))
        elif not isinstance(network, Mapping):
            raise InvalidTypeError(f"{label} is a {type(network).__name__}, expected a module or a state dict")
        listing.append(Candidate(label, numbers_of(state, label), chain, frozenset(symmetries)))
    return listing


def numbers_of(state: Mapping[Any, Any], label: str) -> dict[str, Tensor]:
    """Returns the entries of a state dict that may be parameters: all but counters of batches.

    Raises:
        As `candidates`; ``label`` is the network's name.
    """
    names = {str(key): key for key in state if not is_counter(str(key), state)}
    if not names:
        raise InvalidValueError(f"{label} holds no weights")
    return {name: require_numbers(state[key], f"{label}: {name[:200]}").detach() for name, key in names.items()}


def match(candidate: Candidate, infos: Sequence[NetworkInfo], any_width: bool, reads: str) -> Match:
    """Finds which of some architectures a network has; ``reads``: these in words.

    Raises:
        ValueError: with the reason, if it has none of them, or the weights do not show which.
    """
    fits: dict[int, Match] = {}
    reasons: list[Exception] = []
    for number, info in enumerate(infos):
        try:
            fits[number] = (number, *_names(candidate, info, any_width))
        except (ValueError, TypeError) as error:
            reasons.append(error)
    if not fits:
        words = in_words({key: tuple(t.shape) for key, t in candidate.state.items()})
        same = len(infos) == 1 and words == in_words(infos[0].space.shapes())  # so it is not the layers that differ
        reason = next((r for r in reasons if isinstance(r, OrderError)), reasons[0] if same else None)
        raise InvalidValueError(
            f"{candidate.label}: this predictor reads networks of {reads}; this one has {words}"
            + f": {reason}" * bool(reason)
        )
    if len({infos[number].space for number in fits}) > 1:
        names = listed(dict.fromkeys(infos[number].activation for number in fits))
        raise InvalidValueError(
            f"{candidate.label} may have any of {len(fits)} architectures that this predictor reads, with the "
            f"activations {names}: its weights do not tell; use a predictor of networks of one architecture"
        )
    return next(iter(fits.values()))


def _names(candidate: Candidate, info: NetworkInfo, any_width: bool) -> tuple[dict[str, str], str]:
    parameters, aliases = info.space.parameters, dict(info.aliases)
    prefix = prefix_of(candidate.state, {*parameters, *aliases}, {*parameters}.difference(aliases.values()))
    full: dict[str, str] = {}
    for key in candidate.state:
        inner = key.removeprefix(prefix)
        if key.startswith(prefix) and (name := aliases.get(inner, inner)) is not None:
            full.setdefault(name, key)
    state = {name: candidate.state[key] for name, key in full.items()}
    if candidate.ordered or set(state) == set(parameters):
        names, doubt = match_names(state, info.space, ordered=candidate.ordered), ""
    else:
        names, doubt = match_in_order(state, info.space, candidate.order)
    tensors = {name: state[key].float()[None, None] for name, key in names.items()}
    info.space.validate(tensors)
    if not any_width and (wrong := [n for n, shape in info.space.shapes().items() if tensors[n].shape[2:] != shape]):
        raise InvalidValueError(f"{listed(wrong)} are of another width")
    known = {node.symmetry for node in info.space.nodes.values() if node.permutes}
    if other := sorted(map(str, candidate.activations - known)):
        raise InvalidValueError(f"its activations are of the symmetry {', '.join(other)}")
    return {name: full[key] for name, key in names.items()}, doubt


def in_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """Describes networks with parameters of these shapes: their sizes and kernels if they are a chain of layers.

    Layers are taken in the order in which they are given or, as files have none, in that of their names.

    >>> in_words({"0.weight": (16, 1, 3, 3), "0.bias": (16,), "2.weight": (10, 16)})
    '2 layers 1-16-10, kernels 3x3'
    >>> in_words({"stem": (8, 2), "mid": (9, 8), "head": (3, 9)})
    '3 layers 2-8-9-3'
    >>> in_words({"q": (4, 8), "k": (4, 8)})
    'k (4, 8), q (4, 8)'
    """
    names = sorted(shapes, key=natural)
    for order in (list(shapes), names):
        weights = [tuple(shapes[name]) for name in order if len(shapes[name]) > 1]
        chain = all(follows(b, a) for a, b in itertools.pairwise(weights))
        if chain:
            break
    sizes = [(w[1], w[0]) for w in weights]
    if not weights or not chain or len(weights) + sum(len(shape) == 1 for shape in shapes.values()) != len(shapes):
        return listed([f"{name} {tuple(shapes[name])}" for name in names], 6) or "nothing"
    kernels = ["x".join(map(str, w[2:])) for w in weights if len(w) > 2]
    widths = "-".join(map(str, (sizes[0][0], *(out for _, out in sizes))))
    return f"{len(weights)} layer{'s' * (len(weights) > 1)} {widths}" + (
        f", kernels {', '.join(kernels)}" if kernels else ""
    )
