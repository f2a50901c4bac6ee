"""What the gallery says of architectures of other packages is still so; `make gallery` installs them and runs this."""

import importlib.metadata
import json

import pytest
from scripts import script

pytestmark = pytest.mark.gallery

page = script("gallery")
RECORD = json.loads(page.RECORD.read_text(encoding="utf-8"))
FACTS = ("weights", "tensors", "nodes", "permuted", "scalings", "left", "fibre")


def test_these_are_the_packages_that_the_page_names() -> None:
    assert page.versions() == RECORD["versions"], "run: python docs/gallery.py --again"


@pytest.mark.parametrize("name", page.ARCHITECTURES)
def test_an_architecture_is_read_as_the_page_says(name: str) -> None:
    package = page.ARCHITECTURES[name].package.split(".")[0]
    try:
        importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: make gallery installs it")
    found, said = page.measured(name), RECORD["networks"][name]
    assert {fact: found.get(fact) for fact in FACTS} == {fact: said.get(fact) for fact in FACTS}, found
    assert found.keys() - {"picture"} == said.keys()
    if name in page.DRAWN:
        drawn = (page.PICTURES / page.file_of(name)).read_text(encoding="utf-8")
        assert found["picture"] == drawn, "run: python docs/gallery.py --again"
