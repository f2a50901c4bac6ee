"""A corpus of SIRENs that is fitted in seconds."""

from pathlib import Path

from nfn_monomial.benchmarks.make.inrs import InrConfig

TINY = InrConfig("digits", fits=2, limit=40, steps=100, shard=16)  # 32 * 2 + 4 + 4 networks: five shards


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}
