"""Networks in one frame: written as checkpoints, merged, and the barrier between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import align
from nfn_monomial.alignment import align_all, mean_of, repair
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import align_fibres
from nfn_monomial.tools.files.untrusted import FileError
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent

from .figures import draw_lines
from .finding import Finding, left_behind
from .losses import Data, Loss, Score, loss_on
from .networks import Naming, Network, PathLike, naming_files, read_several

__all__ = ["align_checkpoints"]

NAIVE, PERMUTATION, ALL, FIBRE = "as they are", "permutation", "all symmetries", "normal forms"
SYMMETRIES = {"none": NAIVE, "permutation": PERMUTATION, "all": ALL}
REPAIRED = ", REPAIR"
PLACES = tuple(i / 10 for i in range(11))  # on a line, at which losses are taken
Tensors = Mapping[str, Tensor]


def align_checkpoints(
    *paths: PathLike,
    merge: float | None = None,
    symmetry: str | None = None,
    fibre: bool = False,
    data: Data = None,
    repair_data: Data = None,
    seed: int = 0,
    progress: Progress = silent,
    **naming: Unpack[Naming],
) -> Finding:
    """Moves networks into the frame of the first one, without changing their functions, and measures the barriers.

    Two are aligned by `nfn_monomial.align`, more by `nfn_monomial.alignment.align_all`, so that the moves between them
    compose. On the line from the first network to the mean of the others the loss is computed for the networks as they
    are, moved by permutations only, and moved by all symmetries. Tensors that no symmetry moves, such as a scale of
    inputs, are averaged as they are. With data, networks with running statistics are also repaired
    (`nfn_monomial.alignment.repair`): the statistics become those of the data, and gains and shifts follow them.

    Args:
        paths: two or more checkpoints, or one folder of them.
        merge: share of all but the first network in a merged one, 0 to 1: that of the lines whose loss is the lowest
            there; by all symmetries if no module runs them.
        symmetry: ``none``, ``permutation`` or ``all``: moves the networks that are written, and the merged one. By
            default they are moved by all, and the merged one is the best.
        fibre: whether to move all networks to their normal forms, next to that of the first
            (`nfn_monomial.fibre.align_fibres`), if more than permutations, scales and signs is known. The first is
            written, too.
        data: see `OnData`; **its code runs**. Without data, outputs on the example inputs are compared.
        repair_data: those that REPAIR takes its statistics on, as ``data``; they should be of the training data.
        seed: of the alignment.
        progress: is told how many networks on lines are judged.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    if merge is not None and not 0 <= merge <= 1:
        raise InvalidValueError(f"--merge {merge}: expected the share of the others, 0 to 1")
    if symmetry is not None and (symmetry not in SYMMETRIES or fibre):
        raise InvalidValueError(f"--symmetry {symmetry}: expected {', '.join(SYMMETRIES)}, and not with --fibre")
    networks, skipped = read_several("align", paths, **naming)
    first = networks[0]
    for option, value in (("--data", data), ("--repair-data", repair_data)):
        if value is not None and not first.runs:
            raise InvalidValueError(f"{option} {value}: {first.label} cannot be run: {first.why_not}")
    with naming_files(networks):
        loss = loss_on(data, first.definition.inputs, repair_data) if first.runs else None
        return _aligned(networks, merge, symmetry, fibre, loss, seed, progress).with_notes(skipped)


def _aligned(
    networks: Sequence[Network],
    merge: float | None,
    symmetry: str | None,
    fibre: bool,
    loss: Loss | None,
    seed: int,
    progress: Progress,
) -> Finding:
    first, *others = networks
    unmoved = _unmoved(networks)
    frames = _frames(networks, fibre, seed)
    distances = {
        method: [
            float(torch.stack([(frame[0][name] - other[name]).square().sum() for name in other]).sum().sqrt())
            for other in frame[1:]
        ]
        for method, frame in frames.items()
    }
    method = FIBRE if FIBRE in frames else SYMMETRIES[symmetry or "all"]
    written = networks if method == FIBRE else others
    moved = frames[method][-len(written) :]
    changes = [network.difference_as_written(tensors) for network, tensors in zip(written, moved, strict=True)]
    frames = {m: [{**x, **y} for x, y in zip(frame, unmoved, strict=True)] for m, frame in frames.items()}
    ends: list[Score] = []
    lines: dict[str, dict[str, Any]] = {}
    has_statistics = repairs = False
    if loss is not None:
        module = first.module()
        norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        has_statistics = any(m.running_mean is not None for m in norms)
        repairs = has_statistics and loss.statistics is not None
        ends, lines = _lines(module, loss, frames, merge, repairs, progress)
    names = [network.checkpoint.name for network in written]
    labels = [network.label.replace("/", "-") for network in written]
    merged_name = first.checkpoint.renamed("merged")
    if len(set(names)) < len(names):
        names = [f"{label}-{name}" for label, name in zip(labels, names, strict=True)]
    if merge is not None or len(written) > 1:
        # A network with a configuration, whose name cannot be changed, has a folder of its own.
        for i, network in enumerate(written):
            names[i] = network.checkpoint.inside(labels[i]) if network.checkpoint.configuration else names[i]
        if first.checkpoint.configuration:
            merged_name = first.checkpoint.inside("merged" if "merged" not in labels else "merged-network")
    checkpoints: list[tuple[Network, str, Tensors]] = list(zip(written, names, moved, strict=True))
    way = None
    if merge is not None:
        way = _best_line(lines, symmetry, method)
        frame = frames[way.removesuffix(REPAIRED)]
        merged: Tensors = mean_of(frame, _shares(merge, len(frame)))
        if loss is not None and way.endswith(REPAIRED):
            merged = _network_at(first.module(), frame, merge, loss.statistics)
        checkpoints.append((first, merged_name, merged))
    results = {
        "network": first.definition.name,
        "frame": str(first.checkpoint.path),
        "moved": {
            str(network.checkpoint.path): {
                "distance": {name: values[i] for name, values in distances.items()},
                "max_output_difference": changes[i - len(others)],  # that of the first, if it is written, is before
            }
            for i, network in enumerate(others)
        },
        "max_output_difference": max((x for x in changes if x is not None), default=None),
        "left": sorted({key for network in others for key in network.unread}),
        "share": merge,
        "merged_by": way,
        "judged_by": loss.words if loss else None,
        "repaired_on": loss.repaired_on if loss and repairs else None,
        "own": [{"loss": end, "accuracy": accuracy} for end, accuracy in ends],
        "lines": lines,
    }

    def draw() -> dict[str, Figure | str]:
        losses = {name: line["loss"] for name, line in lines.items()}
        accuracies = {name: line["accuracy"] for name, line in lines.items() if line["accuracy"]}
        return {"barrier.png": draw_lines(losses, accuracies, str(results["judged_by"]))} if lines else {}

    summary = [f"Moved into the frame of {first.label}{' in its normal form' * (FIBRE in lines)}:"]
    for i, network in enumerate(others):
        steps = ", ".join(f"{values[i]:.4g} ({name})" for name, values in distances.items())
        summary.append(f"  {network.label}: distance {steps}")
    if loss:
        summary.append(f"No output changes by more than {results['max_output_difference']:.1e} of the largest by that.")
        summary.append(f"Barriers are of: {loss.words}.")
    else:
        summary.append(f"Outputs were not compared: {first.why_not}.")
    if results["repaired_on"]:
        summary.append(f"REPAIR's statistics are of {results['repaired_on']}.")
    if way:
        reason = ", the lowest loss of the table. These data chose it, so judge it on others"
        summary.append(f"Merged at {merge:.3g} by {way}{reason * (symmetry is None and bool(lines))}.")
    if merge is not None and has_statistics and not repairs:
        summary.append(
            "The merged network's batch norms have averages of the networks' statistics, which are not those of its "
            "own activations: --data or --repair-data gives data on which they are computed anew (REPAIR)."
        )
    summary += left_behind(written if merge is None else networks)
    summary += first.why_no_form(asked=fibre)
    tables = [_table(results, distances)]
    return Finding(tuple(networks), "\n".join(summary), results, tables, draw, checkpoints)


def _unmoved(networks: Sequence[Network]) -> list[dict[str, Tensor]]:
    """Returns, for each network, the tensors that no symmetry moves and that can be averaged, in float64."""
    tensors = [{k: t.double() for k, t in network.unmoved.items() if t.is_floating_point()} for network in networks]
    first, *others = networks
    shapes = [{key: t.shape for key, t in of_one.items()} for of_one in tensors]
    for network, of_one in zip(others, shapes[1:], strict=True):
        if network.settings != first.settings:
            raise FileError(
                f"{first.label} and {network.label} differ in {'; '.join(first.differences(network)[:6])}, which "
                "reaches their functions beside the weights: there is no line between these networks"
            )
        differ = differing(first.unmoved, network.unmoved)
        if odd := [key for key in differ if key not in of_one or of_one[key] != shapes[0].get(key)]:
            raise FileError(
                f"{first.label} and {network.label} differ in {', '.join(odd)}, which the network reads, no symmetry "
                "moves, and are not in floating point, or of two shapes: there is no line between these networks"
            )
    return tensors


def _frames(networks: Sequence[Network], fibre: bool, seed: int) -> dict[str, list[Tensors]]:
    """Moves all networks but the first, in float64, by each method; with normal forms, if asked for, moves all."""
    space, form = networks[0].space, networks[0].form if fibre else None
    wide: list[Tensors] = [{name: t.double() for name, t in network.items()} for network in networks]
    frames = {NAIVE: wide}
    for method, symmetry in ((PERMUTATION, "permutation"), (ALL, None)):
        if len(wide) == 2:
            frames[method] = [wide[0], align(space, *wide, symmetry=symmetry, seed=seed).aligned]
        else:
            frames[method] = list(align_all(space, wide, symmetry=symmetry, seed=seed).aligned)
    if form is not None:
        pairs = [align_fibres(form, wide[0], other, seed=seed) for other in wide[1:]]
        forms = [pairs[0][0], *(other for _, other in pairs)]
        both = zip(wide, forms, strict=True)
        frames[FIBRE] = [{name: moved.get(name, t) for name, t in network.items()} for network, moved in both]
    return frames


def _lines(
    module: nn.Module,
    loss: Loss,
    frames: Mapping[str, Sequence[Tensors]],
    merge: float | None,
    repairs: bool,
    progress: Progress,
) -> tuple[list[Score], dict[str, dict[str, Any]]]:
    """Scores the networks themselves, and those on the line through them in each frame, also repaired, as JSON."""
    ends = loss.of_ends(module, [_narrow(module, network) for network in frames[NAIVE]])
    places = [*PLACES, *([] if merge is None else [merge])]
    lines: dict[str, dict[str, Any]] = {}
    done, count = 0, len(frames) * (1 + repairs) * len(places)
    for method, frame in frames.items():
        for repaired in (False, True)[: 1 + repairs]:
            scores = []
            for t in places:
                network = _network_at(module, frame, t, loss.statistics if repaired else None)
                scores.append(loss.of_merged(module, network, _shares(t, len(frame))))
                done += 1
                progress(done, count)
            barrier = 0.0
            for t, (here, _) in zip(PLACES, scores, strict=False):
                shares = _shares(t, len(frame))
                barrier = max(barrier, here - sum(w * end for w, (end, _) in zip(shares, ends, strict=True)))
            losses, accuracies = [list(column[: len(PLACES)]) for column in zip(*scores, strict=True)]
            lines[method + REPAIRED * repaired] = {
                "t": list(PLACES),
                "loss": losses,
                "accuracy": None if None in accuracies else accuracies,
                "barrier": barrier,
                "merged": None if merge is None else dict(zip(("loss", "accuracy"), scores[-1], strict=True)),
            }
    return ends, lines


def _network_at(module: nn.Module, frame: Sequence[Tensors], t: float, statistics: Any = None) -> Tensors:
    """Returns the network at a place of a line in the module's dtypes, repaired if there are ``statistics`` for it."""
    shares = _shares(t, len(frame))
    mean = _narrow(module, mean_of(frame, shares))
    if statistics is None:
        return mean
    repaired = repair(module, mean, [_narrow(module, network) for network in frame], statistics, shares)
    return {name: repaired[name] for name in mean}


def _narrow(module: nn.Module, network: Tensors) -> dict[str, Tensor]:
    """Converts a network to the module's dtypes, in which it takes its inputs."""
    dtypes = {name: t.dtype for name, t in (*module.named_parameters(), *module.named_buffers())}
    return {name: t.to(dtypes[name]) for name, t in network.items()}


def _shares(t: float, count: int) -> list[float]:
    """Returns the share of the first network, and those of the others, at a place of a line."""
    return [1 - t, *[t / (count - 1)] * (count - 1)]


def _best_line(lines: Mapping[str, Any], symmetry: str | None, method: str) -> str:
    """Returns the line on which a merged network is best, of those that were asked for; without any, the method."""
    losses = {way: line["merged"]["loss"] for way, line in lines.items()}
    if symmetry is not None:
        losses = {way: loss for way, loss in losses.items() if way.removesuffix(REPAIRED) == method}
    return min(losses, key=losses.__getitem__, default=method)


def _table(results: Mapping[str, Any], distances: Mapping[str, Sequence[float]]) -> Table:
    """Tabulates how well each method moves the networks: mean distances, and barriers if they run."""

    def cells_of(loss: float, accuracy: float | None) -> list[str]:
        return [f"{loss:.4g}", *([] if accuracy is None else [f"{accuracy:.3f}"])]

    mean = {method: f"{sum(values) / len(values):.4g}" for method, values in distances.items()}
    header = ["moved by", "distance"]
    cells = [[method, distance] for method, distance in mean.items()]
    notes = []
    if results["lines"]:
        ends = "; ".join(", ".join(cells_of(**score)) for score in results["own"])
        notes = [
            f"Losses: {results['judged_by']}. The networks' own: {ends}. Barrier: the largest excess over these on the "
            "line from the first network to the mean of the others."
        ]
        cells = []
        for method, line in results["lines"].items():
            at_share = cells_of(**line["merged"]) if line["merged"] else []
            cells.append([method, mean[method.removesuffix(REPAIRED)], f"{line['barrier']:.4g}", *at_share])
        header.append("barrier")
        header += [f"{name} at {results['share']:.3g}" for name in ("loss", "accuracy")[: len(cells[0]) - len(header)]]
    bold = frozenset(i for i, line in enumerate(cells) if line[0] == results["merged_by"])
    return Table("The networks in one frame", tuple(header), tuple(map(tuple, cells)), bold=bold, notes=tuple(notes))
