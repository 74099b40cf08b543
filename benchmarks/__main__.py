"""`python -m benchmarks [PART …]`: measure, and print one Markdown table."""

from __future__ import annotations

import importlib
import shutil
import sys

from benchmarks.harness import Figure, markdown, save

PARTS = {"inference": (), "client": ("nginx", "wrk"), "pull": ()}
"""Each part's module, and the programs that it needs."""


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := sorted({*chosen} - PARTS.keys()):
        sys.exit(f"no benchmark {unknown[0]!r}: choose from {', '.join(PARTS)}")
    figures: list[Figure] = []
    for name in chosen:
        if missing := [tool for tool in PARTS[name] if shutil.which(tool) is None]:
            print(f"{name}: left out, {' and '.join(missing)} not installed", file=sys.stderr)
            continue
        print(f"{name}: measuring", file=sys.stderr)
        figures += importlib.import_module(f"benchmarks.{name}").figures()
    save(figures)
    print(markdown(figures))


if __name__ == "__main__":
    main()
