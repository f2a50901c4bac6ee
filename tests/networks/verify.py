"""What a hand-written group claims, compared with the numeric oracles."""

import itertools
from functools import cached_property

import torch
from networks.labels import Label, Labels, Place
from networks.oracle import Function, Probe, Scalings, exchange, flip, kept_subsets, nullity, scalings
from networks.zoo import Network
from torch import Tensor


class Verified:
    """A network, its labels, and what the oracle of scalings says. Each ``require`` asserts one claim of its group."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.function = Function(network.build(), network.inputs)
        self.labels = Labels(network, self.function.shapes)

    @cached_property
    def probe(self) -> Probe:
        return Probe(self.function)

    @cached_property
    def found(self) -> Scalings:
        return scalings(self.function)

    def require_scalings(self) -> None:
        """All scalings together, and those of one item of every node."""
        network, found = self.network, self.found
        dead = sum(int(mask.sum()) for mask in found.dead.values())
        assert (found.count, dead) == (network.scalings + network.extra, network.dead), "scalings, dead entries"
        for name in network.nodes:
            columns = torch.stack([self._column(*mask) for mask in self._masks(name)], 1)
            expected = sum(network.nodes[n].scales for n in self._inside(name))
            assert nullity(found.jacobian @ columns) == expected, f"scalings of an item of {name}"

    def require_signs(self) -> None:
        """The flips of one item of every node."""
        for name in self.network.nodes:
            # A variance has no sign.
            masks = [flip(*mask) for mask in self._masks(name) if not mask[0].endswith("running_var")]
            flips = kept_subsets(self.probe, masks)
            expected = sum(self.network.nodes[n].signs for n in self._inside(name))
            assert len(flips) == expected, f"flips of an item of {name}: {flips} of {self._alive(name)}"

    def require_permutations(self) -> None:
        """Items change places, and nothing less does: no part of their tensors, no item with one of another parent."""
        nodes = self.network.nodes
        for name, items in nodes.items():
            paths = self._paths(name)
            for first, second in ((paths[0], paths[1]), (paths[0], paths[items.size - 1])):
                if first != second:
                    kept = self._keeps_swap((name, first), (name, second))
                    assert kept is not items.still, f"{first}, {second} of {name} change places"
                    assert kept is not None, f"{first}, {second} of {name} cannot change places"
            if items.parent is not None:
                kept = self._keeps_swap((name, paths[0]), (name, paths[items.size]))
                assert not kept, f"items of {name} change parents"
            for other in nodes.keys() - {name, *self._above(name), *self._inside(name)}:
                kept = self._keeps_swap((name, paths[0]), (name, paths[1]), within=(other, self._paths(other)[0]))
                assert not kept, f"{name} would be nested in {other}"

    def require_connected(self) -> None:
        """Items change places in all tensors of a node together, in no others alone: it is not several nodes."""
        for name in self.network.nodes:
            if self._inside(name) != [name]:
                continue  # what is nested in them cannot stay behind
            paths, parts = self._paths(name), []
            for place in self._alive(name):
                swap = self.labels.swap((name, paths[0]), (name, paths[1]), [place])
                assert swap, f"items of {name} stay where they are at {place}"
                parts.append(exchange(place.parameter, swap[place.parameter]))
            found = kept_subsets(self.probe, parts)
            assert len(found) == 1, f"{name} would be several nodes: {found} of {self._alive(name)}"

    def require_fixed(self) -> None:
        """Nothing is permuted in dimensions that are fixed: in one alone, in two alike, in all alike."""
        sizes: dict[int, list[Place]] = {}
        for place in self._alive(""):
            size = 1 + max(e[place][1][-1] for e in self.labels.entries[place.parameter] if place in e)
            if 1 < size <= 8:
                sizes.setdefault(size, []).append(place)
        for size, places in sizes.items():
            subsets = [*itertools.combinations(places, 1), *itertools.combinations(places, 2), tuple(places)]
            for i, j in itertools.combinations(range(size), 2) if size < 5 else itertools.pairwise(range(size)):
                for subset in subsets:
                    kept = self._keeps_swap(("", (i,)), ("", (j,)), list(subset))
                    assert kept is False, f"{i} and {j} change places at {subset}"

    def _keeps_swap(
        self, first: Label, second: Label, places: list[Place] | None = None, within: Label | None = None
    ) -> bool | None:
        """Whether the function is kept if two items change places; None if they cannot or nothing changes places."""
        swap = self.labels.swap(first, second, places, within)
        return self.probe.keeps_order(swap) if swap else None

    def _above(self, node: str) -> list[str]:
        parent = self.network.nodes[node].parent
        return [] if parent is None else [parent, *self._above(parent)]

    def _inside(self, node: str) -> list[str]:
        """A node and all that is nested in it: all items in one of its own move together with it."""
        inner = [name for name, items in self.network.nodes.items() if items.parent == node]
        return [node, *(n for name in inner for n in self._inside(name))]

    def _paths(self, node: str) -> list[tuple[int, ...]]:
        """The items of a node, those of the first parent first."""
        places = self.labels.places(node)
        assert places, f"{self.network.name}: no parameter has an axis on {node}"
        return sorted({e[p][1] for p in places for e in self.labels.entries[p.parameter] if p in e})

    def _masks(self, node: str) -> list[tuple[str, Tensor]]:
        """The entries of its first item at every place of a node, without those that do not matter."""
        label: Label = (node, self._paths(node)[0])
        masks = []
        for place in self.labels.places(node):
            mask = self.labels.mask(place, label) * ~self.found.dead[place.parameter]
            if mask.any():
                masks.append((place.parameter, mask))
        return masks

    def _alive(self, node: str) -> list[Place]:
        def matters(place: Place) -> bool:
            entries = self.labels.entries[place.parameter]
            here = torch.tensor([place in e for e in entries])
            return bool((here & ~self.found.dead[place.parameter].flatten()).any())

        return [place for place in self.labels.places(node) if matters(place)]

    def _column(self, parameter: str, mask: Tensor) -> Tensor:
        blocks = [mask if name == parameter else torch.zeros(shape) for name, shape in self.function.shapes.items()]
        return torch.cat([x.double().flatten() for x in blocks])
