"""What a hand-written group claims, compared with the numeric oracles."""

import itertools
from functools import cached_property

import torch
from torch import Tensor

from networks.labels import Label, Labels, Place
from networks.oracle import Function, Probe, Scalings, nullity, scalings, sign_flips
from networks.zoo import Network


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
            masks = [mask for mask in self._masks(name) if not mask[0].endswith("running_var")]
            flips = sign_flips(self.probe, masks)
            expected = sum(self.network.nodes[n].signs for n in self._inside(name))
            assert len(flips) == expected, f"flips of an item of {name}: {flips} of {self._alive(name)}"

    def require_permutations(self) -> None:
        """Items change places, and nothing else does: no part of a tensor alone, no item with one of another parent."""
        nodes = self.network.nodes
        for name, items in nodes.items():
            paths = self._paths(name)
            for first, second in ((paths[0], paths[1]), (paths[0], paths[items.size - 1])):
                if first != second:
                    swap = self.labels.swap((name, first), (name, second))
                    assert swap and self.probe.keeps_order(swap), f"items {first}, {second} of {name} change places"
            if any(n.parent == name for n in nodes.values()):
                continue  # what is nested in them cannot stay behind
            places = self._alive(name)
            subsets = [[p] for p in places] + [[q for q in places if q != p] for p in places]
            for subset in subsets if len(places) > 1 else []:
                swap = self.labels.swap((name, paths[0]), (name, paths[1]), subset)
                assert swap and not self.probe.keeps_order(swap), f"{name} would be two nodes: {subset}"
            if items.parent is not None:
                swap = self.labels.swap((name, paths[0]), (name, paths[items.size]))
                assert swap is None or not self.probe.keeps_order(swap), f"items of {name} change parents"

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
                    swap = self.labels.swap(("", (i,)), ("", (j,)), list(subset))
                    assert swap and not self.probe.keeps_order(swap), f"{i} and {j} change places at {subset}"

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
