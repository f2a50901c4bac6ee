"""Normal forms of networks, in which those with one function differ by an element of a monomial group alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.canonical.balance import rescaling
from nfn_monomial.checks import checked, require
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.from_module import certified
from nfn_monomial.running import answers, inputs_of, largest_change
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.packing import cut, joined, pieces, whole
from nfn_monomial.space.places import Place
from nfn_monomial.trace.graph import program_of
from nfn_monomial.verify.points import Point

from .batches import batched
from .derive import Fibre, fibre_of
from .directions import KINDS, SharedTurn, directions_of, mappings_of
from .kinds import Linear, Rotary, Rotation, complement, shape_of, stacked
from .left import left_of, mean_of
from .slopes import Slopes

_POINTS = 3  # near the module's own weights, at which gradients are looked at
_DRAWS = 16  # for each of them, until the function is defined there
_ROUNDS = 500
_RTOL = 1e-14
_CERTAIN = 1e-9


class NormalForm:
    """The networks of one architecture, each as the one of its function that differs from others by signs alone.

    Made by `normal_form`. Calling it moves networks to their normal form, networks of ``space``.

    Attributes:
        whole: the space of the module's parameters.
        space: the space of normal forms. Permutations, signs and positive scales are all that is left in its group.
        turns: nodes of ``space`` that matrices acted on, with their axes.
        frozen: the module's tensors that stay as they are, by name: the form holds where they have these values.
        unused: names of its parameters that nothing reads.
    """

    def __init__(self, fibre: Fibre, frozen: Mapping[str, Tensor]) -> None:
        self._fibre = fibre
        self.whole, self.space = fibre.whole, left_of(fibre)
        self.turns = [turn.on(self.space) for turn in fibre.turns]
        self.frozen, self.unused = dict(frozen), fibre.unused

    @property
    def fibre_dimension(self) -> int:
        """The number of directions in which weights move without a change of the function, of all known kinds."""
        return sum(self.dimensions().values())

    def dimensions(self) -> dict[str, int]:
        """The number of these directions of each kind; see `explain`."""
        directions = self.directions()
        return {kind: sum(directions.get(kind, {}).values()) for kind in KINDS}

    def directions(self) -> dict[str, dict[str, int]]:
        """The number of these directions of each kind, on each node of ``whole`` or in each parameter.

        Returns:
            Kind, as `dimensions` has it -> node or parameter -> number of directions.
        """
        return directions_of(self._fibre, self.space)

    def mappings(self) -> list[SharedTurn]:
        """Lists which parameters share a matrix, as a rotation of the residual stream, or take over a norm's gain."""
        return mappings_of(self._fibre)

    def explain(self) -> str:
        """Describes in words what acts on the network besides permutations: the directions of each kind, and where."""
        total = sum(math.prod(shape) for shape in self.whole.shapes().values())
        lines = [f"{self.fibre_dimension} of {total} directions leave the function as it is:"]
        for kind, counts in self.directions().items():
            lines.append(f"  {sum(counts.values()):>6}  {KINDS[kind]}: {', '.join(counts)}")
        lines.append(f"What is left is the group of {self.space!r}: permutations, signs and positive scales.")
        if any(isinstance(turn, Rotary) and len(turn.pairs) > 1 for turn in self._fibre.turns):
            lines.append(
                "Besides, the two entries of a rotary pair may change signs together, which that space does not say."
            )
        return "\n".join(lines)

    def __call__(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Moves networks of ``whole`` to their normal forms, networks of ``space``.

        Computed in float64. Gradients flow, where singular values are apart, but for those through the scales that
        `nfn_monomial.balance` finds.

        Args:
            networks: a state dict; or parameter name -> ``(B, 1, *shape)``, a batch. Other names are left out.

        Returns:
            The same kind of thing, in the same dtype.

        Raises:
            ValueError: for a tensor that is missing or has another shape.
        """
        batch, close = batched(self.whole, networks)
        try:
            return close(self._form(batch))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise InvalidValueError(f"entries are too large or too small for float64: {error}") from error

    def _form(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = self._in_coordinates(self._fibre.reduced(batch))
        _require_finite(tensors)
        for _ in range(_ROUNDS):
            before = tensors
            tensors = self._balanced(tensors)
            if not self._coupled or _change(tensors, before) < _RTOL:
                break
        x = pieces(self.space, tensors, self.space.sizes())
        for turn in self.turns:
            if isinstance(turn, Rotation):  # last: the others leave its Gram matrix as it is now
                x = turn.moved(x, *turn.normal(x))
        form = whole(self.space, x, self.space.sizes())
        _require_finite(form)
        return form

    def _in_coordinates(self, whole_pieces: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pieces of the whole space as networks of ``space``: nodes without means have one coordinate less."""
        x, means = dict(whole_pieces), {}
        for place in self._reading:
            name, mean = mean_of(place.piece), place.mean(x[place.piece])
            means[name] = mean.reshape(len(mean), *self.space.shapes()[name])
            x[place.piece] = place.centred(x[place.piece])
        for place, basis in self._lowered:
            x[place.piece] = place.turned(x[place.piece], basis.mT)
        sizes = self.whole.sizes() | self.space.sizes()
        names = [name for name in self.space.parameters if name in self.whole.parameters]
        return {name: joined(self.whole, name, x, sizes) for name in names} | means

    @property
    def _reading(self) -> list[Place]:
        """Axes of tensors that read what a norm adds."""
        return [place for shift in self._fibre.shifts for place in shift.readers]

    @property
    def _lowered(self) -> list[tuple[Place, Tensor]]:
        """Axes that have one coordinate less in normal forms, each with the basis of the others."""
        turns = [turn for turn in self._fibre.turns if isinstance(turn, Rotation) and turn.centred]
        return [(place, complement(self.whole.sizes()[turn.node])) for turn in turns for place in turn.places]

    def gaps(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The least gap between the numbers that order the neurons, on every node that matrices act on.

        These are the squared singular values of the node's matrices, the squared norms of the neurons in normal form.
        Where two of them are equal, any rotation of the two neurons is left, and the form is one of many: where they
        are nearly so, a little rounding turns it. `compare_fibres` turns such forms next to one another.

        Args:
            networks: of ``space``, as calling this gives them.

        Returns:
            Node -> ``(B,)``, or a number for one state dict: the least difference of two, relative to the largest.
        """
        batch, _ = batched(self.space, networks)
        x, gaps = pieces(self.space, batch, self.space.sizes()), {}
        single = next(iter(networks.values())).ndim == next(iter(batch.values())).ndim - 1
        for turn in self.turns:
            if not isinstance(turn, Rotary):
                places = turn.side(True) if isinstance(turn, Linear) else turn.places
                values = stacked(x, places).square().sum(-1).sort(-1).values
                least = values.diff(dim=-1).amin(-1) / values[..., -1].clamp(min=torch.finfo(values.dtype).tiny)
                gaps[turn.node] = least.flatten(1).amin(1) if least.ndim > 1 else least
        return {node: gap.squeeze(0) if single else gap for node, gap in gaps.items()}

    def write(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normal forms as networks of the module's own architecture: with gains of 1, and zeros where constants were.

        Args:
            networks: of ``space``, as calling this gives them.

        Returns:
            All parameters of ``whole``, under all their names; what else a state dict has stays as it is.
        """
        batch, close = batched(self.space, networks)
        size, sizes = len(next(iter(batch.values()))), self.whole.sizes() | self.space.sizes()
        ones = {gain.place.piece for gain in self._fibre.gains} | {shift.place.piece for shift in self._fibre.shifts}
        ones |= self._fibre.pieces_of(norm.variance for norm in self._fibre.constants.statistics)
        x: dict[str, Tensor] = {}
        for name in self.whole.parameters:
            if name in batch:
                x |= dict(cut(self.whole, name, batch[name], sizes))
                continue
            for piece in self.whole.pieces_of[name]:
                x[piece] = torch.full((size, *shape_of(self.whole, piece)), float(piece in ones), dtype=torch.float64)
        for place, basis in self._lowered:
            x[place.piece] = place.turned(x[place.piece], basis)
        for place in self._reading:
            mean = batch[mean_of(place.piece)]
            x[place.piece] = x[place.piece] + mean.reshape(place.mean(x[place.piece]).shape)
        return self._tied(close(whole(self.whole, x, self.whole.sizes())))

    def _tied(self, networks: dict[str, Tensor]) -> dict[str, Tensor]:
        """Networks with other names of the same tensors, as state dicts have them."""
        return networks | {other: networks[name] for other, name in self.whole.ties.items()}

    def _balanced(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Networks with positive scales and invertible matrices of least norm, each in turn."""
        if self.space.group_dimension:
            features = self.space.pack({n: t.unsqueeze(1) for n, t in tensors.items()})
            features = rescaling(self.space, features, signs=False, converge=True).act(features)
            tensors = {n: t.squeeze(1) for n, t in self.space.unpack(features).items()}
        x = pieces(self.space, tensors, self.space.sizes())
        for turn in self.turns:
            if not isinstance(turn, Rotation):
                x = turn.moved(x, *turn.normal(x))
        return whole(self.space, x, self.space.sizes())

    @property
    def _coupled(self) -> bool:
        """True if matrices and scales meet in a tensor, so that they have to be balanced together."""
        met: set[str] = set()
        for turn in self.turns:
            for place in turn.places if isinstance(turn, Linear) else ():
                axes = [axis for axis in self.space.axes[place.piece] if isinstance(axis, Axis)]
                scales = any(self.space.nodes[axis.node].acting(axis.charge).scales for axis in axes)
                if place.piece in met or scales:
                    return True
                met.add(place.piece)
        return False

    def sample(self, networks: Mapping[str, Tensor], *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Other networks of the same functions: moved by random elements of all that is known to act.

        Args:
            networks: as calling this takes.
            generator: source of randomness.

        Returns:
            Networks of ``whole``, tied parameters under all their names.
        """
        require(generator, torch.Generator | None, "sample: generator")
        batch, close = batched(self.whole, networks)
        fibre, count = self._fibre, len(next(iter(batch.values())))
        x = fibre.reduced(batch)
        for place in fibre.means:
            x[place.piece] = x[place.piece] + _randn(place.mean(x[place.piece]).shape, generator)
        for turn in fibre.turns:
            x = turn.moved(x, *turn.random(self.whole, count, generator))
        for shift, readers in fibre.shifts:
            values = _randn(shift.per_neuron(x[shift.piece]).shape, generator)
            x[shift.piece] = shift.scaled(torch.ones_like(x[shift.piece]), values)
            for place in readers:
                weight, dim = x[place.piece], 1 + place.at
                without = place.centred(weight)
                left = weight.sum(dim, keepdim=True) - place.scaled(without, values).sum(dim, keepdim=True)
                size = place.scaled(torch.ones_like(weight), values).sum(dim, keepdim=True)
                x[place.piece] = without + left / size
        tensors = whole(self.whole, x, self.whole.sizes())
        tensors |= {n: _randn(tensors[n].shape, generator) for n in sorted(fibre.constants.idle)}
        noise = {n: _randn(t.shape, generator) for n, t in tensors.items()}
        constants = {
            source: torch.func.vmap(lambda one, source=source: source.part(one[0], one[1]))(
                (noise[source.parameter], tensors)
            )
            for source in fibre.constants.sources
        }
        tensors = torch.func.vmap(fibre.constants.moved)(tensors, constants)
        for norm in fibre.constants.statistics:
            mean, variance = (_randn(tensors[norm.mean].shape, generator) for _ in range(2))
            tensors = norm.replaced(tensors, mean, variance.exp())
        return self._tied(close(self.whole.sample(count, generator=generator).act(tensors)))


@checked
def normal_form(
    module: nn.Module,
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    frozen: Collection[str] | None = None,
) -> NormalForm:
    """Finds everything that leaves a module's function as it is, and the normal form of its weights under it.

    Besides the monomial group of `WeightSpace.from_module` there may be invertible matrices, where linear maps alone
    touch neurons (between values and outputs of attention, in a low-rank adapter); rotations, where norms do besides;
    gains and constants that other parameters can take over; and means that norms subtract. Each is found by what a
    gradient at random weights does not see, and random elements of all of them together must leave the module's
    answers alone.

    Args:
        module: any network that `WeightSpace.from_module` takes; its parameters are not changed.
        example_inputs: a tensor, or a tuple of all positional arguments.
        kwargs: further arguments of the call.
        frozen: names of parameters that stay as they are, as the base of an adapter. By default those that need no
            gradient, where others do. Buffers stay as they are, but for running statistics.

    Raises:
        ValueError: as `WeightSpace.from_module`; if random elements change an answer.

    >>> form = normal_form(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 6)), torch.zeros(2, 5))
    >>> form.fibre_dimension, form.whole.group_dimension
    (12, 3)
    """
    inputs = () if example_inputs is None else inputs_of(example_inputs)
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    if frozen is None:
        still = {name for name, p in module.named_parameters() if not p.requires_grad}
        frozen = still if any(p.requires_grad for p in module.parameters()) else ()
    if unknown := [name for name in frozen if name not in known]:
        raise InvalidValueError(f"frozen= has {unknown[:3]}, no parameters of the module: {', '.join(known)}")
    with torch.inference_mode(False), torch.enable_grad():
        program = program_of(module, inputs, kwargs, frozen)
        frozen = frozenset(frozen) | program.optional  # buffers that are no statistics, as the base of an adapter
        program = program.holding(program.optional)
        space = certified(program, module, inputs, kwargs)

        # Points with inputs of other sizes, too: what holds for the example's numbers of tokens alone is no symmetry.
        example, generator = Point.of(module, inputs, kwargs), torch.Generator().manual_seed(0)
        first = example.steady_answers()
        near = [point for point, _ in example.neighbours(generator, _POINTS, _DRAWS)]
        resized = [(other.point, other.answers) for other in example.resized(generator) if other.point is not None]
        if not near and not resized:
            raise InvalidValueError(
                f"{type(module).__name__} could be tested at no weights near its own: its outputs there are not "
                "finite, or it raises an error; give weights and inputs with room around them"
            )
        kept = {name: t for name, t in example.weights().items() if name in frozen}
        slopes = Slopes(space, [*near, *(point for point, _ in resized)], kept)
        fibre = fibre_of(program, space, slopes)
        form = NormalForm(fibre, {name: known[name].detach().clone() for name in sorted(frozen)})

        # Other points than those at which gradients were looked at; and the module's own weights, but where answers are
        # 0, as of heads that start with zeros: all changes are infinite there.
        others = [(example, first)] * all(bool(x.any()) for x in first) + [*example.neighbours(generator, 2)]
        _certify(form, others + resized, kept, generator)
    return form


def _certify(
    form: NormalForm,
    points: Sequence[tuple[Point, list[Tensor]]],
    kept: dict[str, Tensor],
    generator: torch.Generator,
) -> None:
    """Raises if random elements change what a module answers at some points; ``kept`` tensors are the same at all."""
    for point, answered in points:
        weights = point.weights() | kept
        expected = answers(point.module, weights, *point.inputs) if kept else answered
        # One after the other, as each is as large as the network.
        outputs = answers(point.module, weights | form.sample(weights, generator=generator), *point.inputs)
        changes = [largest_change(outputs, expected)]
        random_form = form.space.sample(generator=generator).act(form(weights))
        outputs = answers(point.module, weights | form.write(random_form), *point.inputs)
        changes.append(largest_change(outputs, expected))
        if all(change <= _CERTAIN for change in changes):
            continue
        if point.seed is None and point.ties():  # equal entries that are taken by their places
            continue
        raise InvalidValueError(
            f"random elements of the fibre of {form.whole} change its answers by {max(changes):.1e} (relative): an "
            f"operator does what is not known here; tell us of it. {' '.join(form.explain().split())}"
        )


def _randn(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    if infinite := [name for name, x in tensors.items() if not bool(x.isfinite().all())]:
        raise InvalidValueError(
            f"the normal form of {', '.join(infinite)} is not finite: a gain that is to be folded is 0 where what "
            "it divides is not, a running variance is negative, or entries are too large"
        )


def _change(tensors: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> float:
    """The largest change of a squared entry, relative to the largest."""
    return max(
        float((x.square() - before[n].square()).abs().max() / x.square().max().clamp(min=1e-300))
        for n, x in tensors.items()
    )
