"""The command ``nfn-monomial``, also ``python -m nfn_monomial.benchmarks``."""

from __future__ import annotations

import sys

BENCH_PACKAGES = (
    "PIL", "jinja2", "lightning_fabric", "markdown_it", "matplotlib", "mlxtend", "pydantic", "rich", "scipy", "sklearn",
    "typer",
)  # fmt: skip
"""What the extra ``[bench]`` installs, as it is imported: by a command when it runs."""


def main() -> None:
    """Run the command line; says what to install if the extra is missing."""
    try:
        from nfn_monomial.benchmarks.cli.application import run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in BENCH_PACKAGES:
            raise
        sys.exit(f"nfn-monomial needs the package {error.name}: pip install nfn-monomial[bench]")


if __name__ == "__main__":
    main()
