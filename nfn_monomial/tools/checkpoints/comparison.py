"""What networks have in common once symmetry is taken out: two of them in detail, many as a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nfn_monomial import compare
from nfn_monomial.alignment import Comparison
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Report, Table

from .families import Family, family_of
from .figures import draw_comparison
from .networks import Net, PathLike, paths_of, read_networks
from .outputs import Finding

__all__ = ["Pair", "compare_checkpoints"]


@dataclass(frozen=True)
class Pair(Finding):
    """What `compare` found of two networks.

    Attributes:
        found: see `nfn_monomial.alignment.Comparison`.
        unread: keys of tensors that differ and that the function does not read, other than counters of batches.
    """

    found: Comparison
    unread: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """Keys of all tensors that are not in the space and differ, other than counters of batches."""
        return tuple(sorted((*self.found.unmoved, *self.unread)))

    @property
    def summary(self) -> str:
        (a, b), found = self.networks, self.found
        lines = [f"{a.label} and {b.label}: {found.verdict}."]
        if found.max_output_difference is not None and found.relative_output_difference is not None:
            lines.append(
                f"Largest difference of outputs: {found.max_output_difference:.2g}, which is "
                f"{found.relative_output_difference:.2g} of the largest output."
            )
        elif not a.runs:
            lines.append(f"Outputs were not compared: {a.why_not}.")
        shares = ", ".join(f"{kind} {share:.1%}" for kind, share in found.explained.items())
        lines.append(f"Of the squared distance between the weights explain: {shares}.")
        if found.unmoved:
            lines.append(f"What no symmetry moves differs, too: {', '.join(found.unmoved[:6])}.")
        if self.unread:
            lines.append(f"Left out, as the network does not read it: {', '.join(self.unread[:6])}.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        a, b = self.networks
        return {
            "network": a.definition.name,
            "a": str(a.checkpoint.path),
            "b": str(b.checkpoint.path),
            **self.found.to_json(),
            "other_differences": list(self.others),
        }

    def report(self) -> Report:
        a, b = self.networks
        norms = {name: float(torch.linalg.vector_norm(t, dtype=torch.float64)) for name, t in a.items()}
        lines = [
            (name, f"{layer.raw_l2:.4g}", f"{layer.aligned_l2:.4g}", f"{norms[name]:.4g}")
            for name, layer in self.found.layers.items()
        ]
        notes = ["Raw: of the second from the first; aligned: once it is moved next to it; norm: of the first."]
        if self.found.cka:
            notes.append(f"CKA of what layers read, on the example inputs: {self.found.cka_text()}.")
        header = ("parameter", "raw L2", "aligned L2", "norm")
        table = Table(f"{a.label} and {b.label}", header, tuple(lines), notes=tuple(notes))
        return Report([table], self.to_json(), {"compare.png": draw_comparison(self.found)})


def compare_checkpoints(
    *paths: PathLike,
    net: Net = None,
    input_shape: Sequence[int] | None = None,
    activation: str | None = None,
    key: str | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    call: Call = ALONE,
) -> Pair | Family:
    """Two networks: whether they are the same function up to symmetry, and how they differ. More: a family tree.

    See `nfn_monomial.compare` for two, `family_of` for more.

    Args:
        paths: two or more checkpoints, or one folder of them.
        net: see `read_architecture`, as ``input_shape`` and ``activation``; **its code runs**.
        input_shape: of the example inputs, batch included; of a module that does not state any.
        activation: between the layers of a chain, by name.
        key: of the state dict in files of ``torch.save``, where they have several.
        seed: of the alignment.
        on_progress: called with the number of pairs done and of all.
        call: which keeps the distances of more than two.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out.
    """
    networks = read_networks(paths_of(paths), net, input_shape=input_shape, activation=activation, key=key)
    if len(networks) < 2:
        raise InvalidValueError(f"compare needs two networks, or a folder of them; found {networks[0].label} alone")
    if len(networks) > 2:
        return family_of(networks, seed=seed, on_progress=on_progress, call=call)
    a, b = networks
    # What a checkpoint lacks is the module's own, so it is one that has read none.
    module, inputs = (a.definition.template(), a.definition.inputs) if a.runs and b.runs else (None, None)
    found = compare(a.space, a.state, b.state, module=module, inputs=inputs, seed=seed)
    return Pair((a, b), found, differing(a.unread, b.unread))
