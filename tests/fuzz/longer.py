"""Any number of damages, in turn for every kind of file: ``python -m fuzz.longer 100000``; a second call goes on.

The counts are kept in ``build/fuzz.json``: of every sample how often which outcome came. Faults are printed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from .samples import SAMPLES
from .trial import Bench

COUNTS = Path("build/fuzz.json")
BLOCK = 500  # trials between two writes of the counts
RARE = 100  # a slow sample is damaged once in so many times


def run(total: int) -> dict[str, dict[str, int]]:
    """Damage files until ``total`` trials are counted, those of earlier calls included; sample -> outcome -> count."""
    known = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}
    found = {name: Counter(known.get(name, {})) for name in SAMPLES}
    with tempfile.TemporaryDirectory() as folder:
        benches = {name: Bench(name, Path(folder)) for name in SAMPLES}
        while (left := total - sum(map(Counter.total, found.values()))) > 0:
            share = max(1, min(BLOCK, left) // len(SAMPLES))
            for name, bench in benches.items():
                done = found[name].total()
                for number in range(done, done + (max(1, share // RARE) if bench.sample.slow else share)):
                    what, outcome = bench.trial(number)
                    found[name][outcome.kind] += 1
                    if outcome.kind == "FAULT":
                        print(f"{what}: {outcome.detail}", flush=True)
            COUNTS.parent.mkdir(parents=True, exist_ok=True)
            COUNTS.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return {name: dict(numbers) for name, numbers in found.items()}


def main() -> None:
    """As many as the first argument says."""
    warnings.simplefilter("ignore")
    found = run(int(sys.argv[1]))
    kinds = ("refused", "same", "other", "FAULT")
    for name, numbers in [*found.items(), ("all", sum((Counter(n) for n in found.values()), Counter()))]:
        print(f"{name:20}" + "".join(f"{kind} {numbers.get(kind, 0):<9}" for kind in kinds))
    sys.exit(any(numbers.get("FAULT") for numbers in found.values()))


if __name__ == "__main__":
    main()
