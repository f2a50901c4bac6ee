"""The canonical form of a network as a checkpoint: balanced scales, fixed signs, the same function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from nfn_monomial import balance
from nfn_monomial.canonical.fingerprint import STEPS
from nfn_monomial.tools.report import Table

from .findings import Finding, Written, difference_as_written, left_behind
from .networks import Naming, PathLike, read_networks

__all__ = ["balance_checkpoint"]


def balance_checkpoint(checkpoint: PathLike, *, fibre: bool = False, **naming: Unpack[Naming]) -> Finding:
    """The canonical form of a checkpoint: of all networks that scales and signs lead to, the balanced one.

    See `nfn_monomial.balance`. The function is the same; neurons stay in their places.

    Args:
        checkpoint: the network.
        fibre: whether to write its normal form (`nfn_monomial.fibre.NormalForm.write`), by all that leaves the function
            as it is, where more than permutations, scales and signs is known.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    (network,) = read_networks([checkpoint], **naming)
    form = network.form if fibre else None
    wide = {name: t.double() for name, t in network.items()}
    space, weights = (network.space, wide) if form is None else (form.space, form(wide))
    balanced, _ = balance({name: t[None, None] for name, t in weights.items()}, space)
    tensors: Mapping[str, Tensor] = {name: t[0, 0] for name, t in balanced.items()}
    if form is not None:
        written = form.write(tensors)
        tensors = {name: written.get(name, t) for name, t in wide.items()}
    printed, difference = network.fingerprint(), difference_as_written(network, tensors)
    before, after = _norms(network), _norms(tensors)
    norms = {name: {"before": before[name], "after": after[name]} for name in before}
    if difference is None:
        said = f"Its outputs were not compared: {network.why_not}."
    else:
        said = f"No output changes by more than {difference:.1e} of the largest."
    if printed is None:
        coarse = sorted({str(t.dtype).removeprefix("torch.") for t in network.values() if t.dtype not in STEPS})
        told = f"none, as {', '.join(coarse)} has too few digits to tell networks apart; compare it with others"
    else:
        told = printed
    lines = [f"Fingerprint of {network.label}: {told}", said, *left_behind([network])]
    lines += network.why_no_form(asked=fibre)
    cells = [(name, f"{norm['before']:.4g}", f"{norm['after']:.4g}") for name, norm in norms.items()]
    results = {
        "network": network.definition.name,
        "checkpoint": str(network.checkpoint.path),
        "fingerprint": printed,
        "normal_form": form is not None,
        "max_output_difference": difference,
        "left": list(network.unread),
        "norm": norms.pop("all"),
        "layers": norms,
    }
    table = Table(f"The canonical form of {network.label}", ("parameter", "L2 norm", "balanced"), tuple(cells))
    made = Written(network, network.checkpoint.name, tensors)
    return Finding((network,), "\n".join(lines), results, [table], checkpoints=[made]).with_notes()


def _norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Of every tensor, and of all together."""
    norms = {name: float(t.double().norm()) for name, t in tensors.items()}
    return norms | {"all": float(torch.tensor(list(norms.values()), dtype=torch.float64).norm())}
