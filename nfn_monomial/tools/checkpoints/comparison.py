"""Networks compared once symmetry is taken out: two in detail, more as a family."""

from __future__ import annotations

from typing import Unpack

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.checkpoints import checkpoints_at
from nfn_monomial.tools.files.untrusted import FileError
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .families import compare_family
from .finding import Finding
from .networks import Naming, PathLike, naming_files, read_networks, read_several
from .pairs import compare_pair
from .vocabularies import compare_vocabularies

__all__ = ["compare_checkpoints"]


def compare_checkpoints(
    *paths: PathLike,
    apart: PathLike | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Progress = silent,
    **naming: Unpack[Naming],
) -> Finding:
    """Compares two networks: are they the same function up to symmetry, and how do they differ? More: a family tree.

    See `nfn_monomial.compare` for two, `compare_family` for more.

    Args:
        paths: two or more checkpoints, or one folder of them.
        apart: a folder of others that were trained independently by the same recipe, for a p-value of two networks
            that does not depend on the order of neurons (`p_value_of_partners`).
        seed: of the alignment.
        store: keeps the distances of more than two.
        progress: is told how many pairs are done; of two networks, which of the steps.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out.
    """
    try:
        networks, skipped = read_several("compare", paths, fused=True, **naming)
    except FileError:
        if apart is None and (finding := compare_vocabularies(paths, seed, **naming)):
            return finding
        raise
    others = []
    if apart is not None:
        if len(networks) > 2:
            raise InvalidValueError(f"--apart {apart}: it is for two networks, found {len(networks)}")
        both = [network.checkpoint.path for network in networks]
        others = read_networks([*both, *checkpoints_at([apart])], **naming)[2:]
    with naming_files([*networks, *others]):
        if len(networks) > 2:
            return compare_family(networks, seed, store, progress).with_notes(skipped)
        return compare_pair(networks[0], networks[1], others, seed, progress).with_notes(skipped)
