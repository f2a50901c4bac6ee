"""The command ``nfn-monomial``, also ``python -m nfn_monomial.benchmarks``."""

from __future__ import annotations

import sys

BENCH_PACKAGES = ("lightning_fabric", "markdown_it", "matplotlib", "mlxtend", "rich", "scipy", "sklearn", "typer")


def main() -> None:
    """Run the command line; says what to install if the ``[bench]`` extra is missing."""
    try:
        from nfn_monomial.benchmarks.cli.application import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in BENCH_PACKAGES:
            raise
        sys.exit(f"nfn-monomial needs the package {error.name}: pip install nfn-monomial[bench]")
    run()


if __name__ == "__main__":
    main()
