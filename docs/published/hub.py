"""Snapshots of the Hugging Face hub: a folder for each network, with `model.safetensors` and `results.json`.

The latter states the accuracy."""

import json
from pathlib import Path


def write_hub_table(folder):
    lines = []
    for file in sorted(Path(folder).rglob("model.safetensors")):
        accuracy = json.loads(file.with_name("results.json").read_text())["accuracy"]
        lines.append({"checkpoint": file.relative_to(folder).as_posix(), "accuracy": accuracy})
    Path(folder, "targets.json").write_text(json.dumps(lines))
