"""The package itself: version, import, files."""

import re
from pathlib import Path

import tilewise

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_header_s() -> None:
    header = (ROOT / "include/tilewise/tilewise.h").read_text()
    parts = re.findall(r"#define TILEWISE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert tilewise.__version__ == ".".join(parts)
