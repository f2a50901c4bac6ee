"""What networks have in common once symmetry is taken out: two of them in detail, many as a family."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch

from nfn_monomial.alignment import Kinship, kinship
from nfn_monomial.alignment.outputs import p_value_of_partners
from nfn_monomial.alignment.places import LOOKED_FOR
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.strangers import FileError
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .families import family_of, placed_by_class, told_places
from .figures import draw_comparison
from .findings import Finding, naming_files
from .judging import STEPS, judged
from .networks import Naming, Network, PathLike, paths_of, read_networks, read_several
from .vocabularies import rows_in_common

__all__ = ["compare_checkpoints"]

_SURPRISING = 0.05  # p-values above are not told as such


def compare_checkpoints(
    *paths: PathLike,
    apart: PathLike | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Progress = silent,
    **naming: Unpack[Naming],
) -> Finding:
    """Two networks: whether they are the same function up to symmetry, and how they differ. More: a family tree.

    See `nfn_monomial.compare` for two, `family_of` for more.

    Args:
        paths: two or more checkpoints, or one folder of them.
        apart: of two, a folder of others that were trained independently by the same recipe, for a p-value that does
            not ask in which order neurons stand (`p_value_of_partners`).
        seed: of the alignment.
        store: which keeps the distances of more than two.
        progress: told how many pairs of more than two are done; of two, which of the steps.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out.
    """
    try:
        networks, skipped = read_several("compare", paths, fused=True, **naming)
    except FileError:
        shared = _rows_of(paths, seed, **naming) if apart is None else None
        if shared is None:
            raise
        return shared
    several = len(networks) > 2
    if apart is not None and several:
        raise InvalidValueError(f"--apart {apart}: it is for two networks, found {len(networks)}")
    both = [network.checkpoint.path for network in networks]
    others = [] if apart is None else read_networks([*both, *paths_of([apart])], **naming)[2:]
    with naming_files([*networks, *others]):
        if several:
            found = family_of(networks, seed, store, progress)
        else:
            found = _pair_of(networks[0], networks[1], others, seed, progress)
    return found.with_notes(skipped)


def _rows_of(paths: Sequence[PathLike], seed: int, **naming: Unpack[Naming]) -> Finding | None:
    """The kinship of two networks of other vocabularies; None where other things differ, too."""
    both = paths_of(paths)
    shared = rows_in_common(both, **naming) if len(both) == 2 else None
    if shared is None:
        return None
    a, b, shapes = shared
    with naming_files([a, b]):
        kin = kinship(a.space, a, b, seed=seed, given=a.definition.given)
    words = [
        f"{a.label} and {b.label}: not known to be the same: {'; '.join(shapes[:6])}; kinship is that of the entries "
        "that both have, by their places.",
        *_said(kin),
    ]
    results = {
        "network": a.definition.name,
        "a": str(a.checkpoint.path),
        "b": str(b.checkpoint.path),
        "same_function": False,
        "other_shapes": shapes,
        "kinship": _json(kin),
    }
    return Finding((a, b), "\n".join(words), results).with_notes({})


def _json(kin: Kinship) -> dict[str, Any]:
    return dataclasses.asdict(kin) | {"nodes": {name: node._asdict() for name, node in kin.nodes.items()}}


def _pair_of(a: Network, b: Network, apart: Sequence[Network], seed: int, progress: Progress) -> Finding:
    pair = judged(a, b, seed, progress=progress)
    found, forms = pair.weights, pair.forms
    unread = differing(a.unread, b.unread)
    lines = [f"{a.label} and {b.label}: {pair.verdict.words}."]
    if found.outputs is not None:
        lines.append(
            f"Largest difference of outputs: {found.outputs.largest:.2g}, which is {found.outputs.relative:.2g} of the "
            "largest output."
        )
    elif not a.runs:
        lines.append(f"Outputs were not compared: {a.why_not}.")
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in found.explained.items())
    lines.append(f"Of the squared distance between the weights explain: {shares}.")
    if beside := a.differences(b):
        lines.append(f"What reaches their functions beside the weights differs: {'; '.join(beside[:6])}.")
    if found.unmoved:
        lines.append(f"What no symmetry moves differs, too: {', '.join(found.unmoved[:6])}.")
    if unread:
        lines.append(f"Left out, as the network does not read it: {', '.join(unread[:6])}.")
    norms = {name: float(torch.linalg.vector_norm(t, dtype=torch.float64)) for name, t in a.items()}
    if forms is not None:
        moved = math.hypot(*(layer.aligned_l2 for layer in found.layers.values())) / (math.hypot(*norms.values()) or 1)
        before, after = forms.distances.items()
        steps = dict([before, ("but for permutations, signs and scales", moved), after])
        forms = dataclasses.replace(forms, distances=steps)
        lines.append("Distances, relative to the first: " + ", ".join(f"{x:.2g} {k}" for k, x in steps.items()) + ".")
    elif not found.same_function and not beside:
        lines += a.why_no_form()
    kin = kinship(a.space, a, b, seed=seed, given=a.definition.given)
    progress(STEPS, STEPS)
    wherever = None
    if apart and found.outputs is not None and not beside:
        module, states = a.definition.template(), [network.state for network in (a, b, *apart)]
        wherever = p_value_of_partners(a.space, module, a.definition.inputs, states)
    if not found.same_function or kin.p_value <= _SURPRISING:
        lines += [*_said(kin), *(placed_by_class([a, b], seed) if kin.p_value <= _SURPRISING else ())]
        if wherever is not None:
            lines.append(
                f"Wherever neurons stand, {wherever:.2g} of all pairs of these two and the {len(apart)} of --apart "
                "have neurons so alike: a p-value."
            )
        elif apart:
            lines.append("No p-value from --apart: it takes a network that runs, on 8 example inputs or more.")
    results = {
        "network": a.definition.name,
        "a": str(a.checkpoint.path),
        "b": str(b.checkpoint.path),
        **found.to_json(),
        "normal_forms": None if forms is None else forms.to_json(),
        "kinship": _json(kin),
        "partners_p_value": wherever,
        "other_differences": sorted((*found.unmoved, *unread)),
        "settings": beside,
    }
    cells = [
        (name, f"{layer.raw_l2:.4g}", f"{layer.aligned_l2:.4g}", f"{norms[name]:.4g}")
        for name, layer in found.layers.items()
    ]
    note = "Raw: of the second from the first; aligned: once it is moved next to it; norm: of the first."
    header = ("parameter", "raw L2", "aligned L2", "norm")
    table = Table(f"{a.label} and {b.label}", header, tuple(cells), notes=(note,))
    return Finding((a, b), "\n".join(lines), results, [table], lambda: {"compare.png": draw_comparison(found)})


def _said(kin: Kinship) -> list[str]:
    """How surprising it is where neurons stand, in words."""
    left = [f"Left out of kinship are {told_places(kin.places)}."] * bool(kin.places)
    if not kin.nodes and kin.places:
        return [f"No p-value of kinship: all that could be compared are {told_places(kin.places)}."]
    if not kin.nodes:
        return ["No p-value of kinship: it has no two neurons that training treats alike."]
    places = f"{kin.in_place} of {kin.neurons} are nearest to the one in their own place, by chance {kin.expected}"
    if kin.p_value > _SURPRISING:
        return [
            f"Neurons stand as if they were trained apart, or permuted since (p = {kin.p_value:.2g}; {places}).",
            *left,
        ]
    return [
        f"Trained apart, they would have their neurons so much alike in less than 1 of {1 / kin.p_value:.2g} cases "
        f"(p = {kin.p_value:.2g}; {places}).",
        f"That holds if their first weights treat these neurons alike: looked for, and not seen, were {LOOKED_FOR}.",
        *left,
    ]
