"""The canonical form of a network as a checkpoint: balanced scales, fixed signs, the same function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

from torch import Tensor

from nfn_monomial import balance
from nfn_monomial.canonical.fingerprint import STEPS
from nfn_monomial.tools.report import Table

from .finding import Finding, left_behind
from .networks import Naming, PathLike, read_networks

__all__ = ["balance_checkpoint"]


def balance_checkpoint(checkpoint: PathLike, *, fibre: bool = False, **naming: Unpack[Naming]) -> Finding:
    """Makes the canonical form of a checkpoint: the balanced one of all networks that scales and signs lead to.

    See `nfn_monomial.balance`. The function is the same; neurons stay in their places.

    Args:
        checkpoint: the network.
        fibre: whether to write its normal form (`nfn_monomial.fibre.NormalForm.write`), if more than permutations,
            scales and signs is known to keep the function.
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
    printed, difference = network.fingerprint(), network.difference_as_written(tensors)
    norms = {name: {"before": float(t.norm()), "after": float(tensors[name].norm())} for name, t in wide.items()}
    norm = {when: math.hypot(*(of_one[when] for of_one in norms.values())) for when in ("before", "after")}
    if difference is None:
        outputs = f"Its outputs were not compared: {network.why_not}."
    else:
        outputs = f"No output changes by more than {difference:.1e} of the largest."
    text = printed
    if text is None:
        coarse = sorted({str(t.dtype).removeprefix("torch.") for t in network.values() if t.dtype not in STEPS})
        text = f"none, as {', '.join(coarse)} has too few digits to tell networks apart; compare it with others"
    lines = [f"Fingerprint of {network.label}: {text}", outputs, *left_behind([network])]
    lines += network.why_no_form(asked=fibre)
    both = {**norms, "all": norm}
    cells = [(name, f"{of_one['before']:.4g}", f"{of_one['after']:.4g}") for name, of_one in both.items()]
    results = {
        "network": network.definition.name,
        "checkpoint": str(network.checkpoint.path),
        "fingerprint": printed,
        "normal_form": form is not None,
        "max_output_difference": difference,
        "left": list(network.unread),
        "norm": norm,
        "layers": norms,
    }
    table = Table(f"The canonical form of {network.label}", ("parameter", "L2 norm", "balanced"), tuple(cells))
    new = [(network, network.checkpoint.name, tensors)]
    return Finding((network,), "\n".join(lines), results, [table], checkpoints=new).with_notes()
