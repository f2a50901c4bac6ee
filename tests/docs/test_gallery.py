"""The gallery's page is what its record says; `tests/gallery` compares the record with the packages themselves."""

import json

from scripts import script

page = script("gallery")
TEXT = page.PAGE.read_text(encoding="utf-8")
NETWORKS = json.loads(page.RECORD.read_text(encoding="utf-8"))["networks"]


def test_the_page_is_up_to_date() -> None:
    assert page.written(TEXT) == TEXT, "run: python docs/gallery.py"


def test_every_architecture_is_recorded_and_failures_are_explained() -> None:
    assert list(NETWORKS) == list(page.ARCHITECTURES)
    assert {name for name, found in NETWORKS.items() if "refused" in found or found["left"]} == set(page.WHY)
    assert all({"refused", "fibre", "formless"} & found.keys() for found in NETWORKS.values())


def test_pictures_are_small_and_none_is_left_over() -> None:
    files = {path.name: path.stat().st_size for path in page.PICTURES.iterdir()}
    assert files.keys() == {page.file_of(name) for name in page.DRAWN}
    assert sum(files.values()) < 600_000
