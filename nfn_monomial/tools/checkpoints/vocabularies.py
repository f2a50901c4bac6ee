"""Two networks of other vocabularies: their kinship by the rows that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from nfn_monomial.space.axes import Axis
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.strangers import FileError

from .files import Checkpoint, read_checkpoint
from .networks import Naming, Network, PathLike, read_architecture

__all__ = ["rows_in_common"]


class _Rows(Checkpoint):
    """A checkpoint in the shapes of an architecture: 0 stands for what lies beyond the entries that both have."""

    def __init__(
        self, whole: Checkpoint, places: Mapping[str, str], common: Mapping[str, tuple[int, ...]], like: Definition
    ) -> None:
        self.path, self._whole, self._places, self._common = whole.path, whole, places, common
        self.shapes = {key: like.shapes[key] if key in common else whole.shapes[full] for key, full in places.items()}

    @property
    def files(self) -> list[Path]:
        return self._whole.files

    def stored(self, key: str) -> Tensor:
        found = self._whole.stored(self._places[key])
        if key not in self._common:
            return found
        padded, corner = found.new_zeros(self.shapes[key]), tuple(map(slice, self._common[key]))
        padded[corner] = found[corner]
        return padded

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        raise FileError(f"{self.path}: what is compared by a part of its entries is not written")


def rows_in_common(paths: Sequence[PathLike], **naming: Unpack[Naming]) -> tuple[Network, Network, list[str]] | None:
    """Two checkpoints of one architecture but for sizes along which no neuron stands, as of a vocabulary.

    Returns:
        The networks in the shapes of the architecture, which one of them has, with 0 for what only one has; and in
        words which tensors have which shapes. None where something else differs, too.
    """
    both = [read_checkpoint(path, naming.get("key")) for path in paths]
    definition = read_architecture(both[0], **naming)
    if definition.chain:
        return None
    places = [definition.places(checkpoint) for checkpoint in both]
    shapes = [{key: c.shapes[full] for key, full in of.items()} for c, of in zip(both, places, strict=True)]
    common: dict[str, tuple[int, ...]] = {}
    for key in sorted(definition.shapes.keys() & shapes[0].keys() & shapes[1].keys()):
        found = [definition.shapes[key], shapes[0][key], shapes[1][key]]
        if len(set(found)) > 1:
            dims: Sequence[Any] = definition.space.parameters.get(definition.tied.get(key, key), found[0])
            if len(set(map(len, found))) > 1 or not all(
                len(set(sizes)) == 1 or _is_still(definition, dim) for *sizes, dim in zip(*found, dims, strict=True)
            ):
                return None
            common[key] = tuple(map(min, zip(*found, strict=True)))
    if not common or not any(all(of[key] == definition.shapes[key] for key in common) for of in shapes):
        return None
    a, b = (
        Network(definition, _Rows(checkpoint, of, common, definition), checkpoint.path.stem)
        for checkpoint, of in zip(both, places, strict=True)
    )
    if a.label == b.label:
        a.label, b.label = (str(checkpoint.path) for checkpoint in both)
    return a, b, [f"{key} is {shapes[0][key]} and {shapes[1][key]}" for key in common]


def _is_still(definition: Definition, dim: Any) -> bool:
    """Whether a dimension is a size on which nothing acts, or runs over what no permutation moves."""
    return isinstance(dim, int) or (isinstance(dim, Axis) and not definition.space.nodes[dim.node].permutes)
