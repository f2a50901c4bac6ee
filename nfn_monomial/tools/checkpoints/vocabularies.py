"""Two networks with other vocabularies: their kinship by the rows that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from nfn_monomial.alignment import kinship
from nfn_monomial.space.axes import Axis
from nfn_monomial.tools.definitions.architectures import Naming, read_architecture
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.checkpoints import Checkpoint, checkpoints_at, read_checkpoint
from nfn_monomial.tools.files.untrusted import FileError

from .finding import Finding
from .networks import Network, PathLike, naming_files
from .pairs import kinship_in_words, kinship_to_json

__all__ = ["compare_vocabularies"]


class CommonEntries(Checkpoint):
    """A checkpoint in the shapes of an architecture, with 0 beyond the entries that two checkpoints have in common."""

    def __init__(
        self, whole: Checkpoint, file_key: Mapping[str, str], common: Mapping[str, tuple[int, ...]], like: Definition
    ) -> None:
        self.path, self._whole, self._file_key, self._common = whole.path, whole, file_key, common
        self.shapes = {key: like.shapes[key] if key in common else whole.shapes[full] for key, full in file_key.items()}

    @property
    def files(self) -> list[Path]:
        return self._whole.files

    def stored(self, key: str) -> Tensor:
        tensor = self._whole.stored(self._file_key[key])
        if key not in self._common:
            return tensor
        padded, corner = tensor.new_zeros(self.shapes[key]), tuple(map(slice, self._common[key]))
        padded[corner] = tensor[corner]
        return padded

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        raise FileError(f"{self.path}: a network that is compared by a part of its entries is not written")


def compare_vocabularies(paths: Sequence[PathLike], seed: int, **naming: Unpack[Naming]) -> Finding | None:
    """Computes the kinship of two networks that differ only in sizes along which no neuron stands, as of a vocabulary.

    Each network has the shapes of the architecture, which are those of one of them, and 0 for entries that only one
    has. None if they differ in anything else.
    """
    if len(paths := checkpoints_at(paths)) != 2:
        return None
    checkpoints = [read_checkpoint(path, naming.get("key")) for path in paths]
    definition = read_architecture(checkpoints[0], **naming)
    if definition.chain:
        return None
    file_keys = [definition.places(checkpoint) for checkpoint in checkpoints]
    shapes = [{k: c.shapes[full] for k, full in keys.items()} for c, keys in zip(checkpoints, file_keys, strict=True)]
    common: dict[str, tuple[int, ...]] = {}
    for key in sorted(definition.shapes.keys() & shapes[0].keys() & shapes[1].keys()):
        three = [definition.shapes[key], shapes[0][key], shapes[1][key]]
        if len(set(three)) > 1:
            dims: Sequence[Any] = definition.space.parameters.get(definition.tied.get(key, key), three[0])
            if len(set(map(len, three))) > 1:
                return None
            for *sizes, dim in zip(*three, dims, strict=True):
                # nothing acts on a plain size, nor on an axis whose node is not permuted
                still = isinstance(dim, int) or (
                    isinstance(dim, Axis) and not definition.space.nodes[dim.node].permutes
                )
                if len(set(sizes)) > 1 and not still:
                    return None
            common[key] = tuple(map(min, zip(*three, strict=True)))
    if not common or not any(all(of[key] == definition.shapes[key] for key in common) for of in shapes):
        return None
    a, b = (
        Network(definition, CommonEntries(checkpoint, keys, common, definition), checkpoint.path.stem)
        for checkpoint, keys in zip(checkpoints, file_keys, strict=True)
    )
    if a.label == b.label:
        a.label, b.label = (str(checkpoint.path) for checkpoint in checkpoints)
    with naming_files([a, b]):
        kin = kinship(a.space, a, b, seed=seed, given=a.definition.unlearned)
    differences = [f"{key} is {shapes[0][key]} and {shapes[1][key]}" for key in common]
    words = [
        f"{a.label} and {b.label}: not known to be the same: {'; '.join(differences[:6])}; kinship is that of the "
        "entries that both have, by their places.",
        *kinship_in_words(kin),
    ]
    results = {
        "network": a.definition.name,
        "a": str(a.checkpoint.path),
        "b": str(b.checkpoint.path),
        "same_function": False,
        "other_shapes": differences,
        "kinship": kinship_to_json(kin),
    }
    return Finding((a, b), "\n".join(words), results).with_notes({})
