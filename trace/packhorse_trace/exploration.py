"""Measured ways to compile a model: who wins, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.errors import MissingPackage

FASTEST, MOST = "lowest latency", "highest throughput"


@dataclass(frozen=True)
class Point:
    """One way, measured at one length.

    Attributes:
        texts_per_second: On each core.
    """

    precision: str
    tokens: int
    batch: int
    threads: int
    p50_ms: float
    p90_ms: float
    texts_per_second: float

    @property
    def way(self) -> str:
        """Describe it in a line."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return (
            f"{self.precision}, batch {self.batch}, {threads}: P90 {self.p90_ms:.2f} ms, "
            f"{self.texts_per_second:.1f} texts/s a core"
        )


def winners(points: Sequence[Point]) -> dict[int, dict[str, Point]]:
    """Return, for each length, the way of lowest P90 and the way of most texts a second."""
    found = {}
    for tokens in sorted({point.tokens for point in points}):
        here = [point for point in points if point.tokens == tokens]
        found[tokens] = {
            FASTEST: min(here, key=lambda point: point.p90_ms),
            MOST: max(here, key=lambda point: point.texts_per_second),
        }
    return found


def draw(
    points: Sequence[Point], chosen: dict[int, dict[str, Point]], title: str, path: Path
) -> None:
    """Draw latency against throughput, a panel for each length, as a PNG.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
    except ImportError as err:
        raise MissingPackage("matplotlib", "trace") from err
    figure = Figure(figsize=(5.5 * len(chosen), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    precisions = sorted({point.precision for point in points})
    for number, (tokens, best) in enumerate(chosen.items(), 1):
        axes = figure.add_subplot(1, len(chosen), number)
        for precision in precisions:
            here = [p for p in points if (p.tokens, p.precision) == (tokens, precision)]
            axes.scatter([p.p90_ms for p in here], [p.texts_per_second for p in here],
                         label=precision, alpha=0.8)  # fmt: skip
            for point in here:
                axes.annotate(f"b{point.batch} t{point.threads}",
                              (point.p90_ms, point.texts_per_second), fontsize=7,
                              xytext=(4, 4), textcoords="offset points")  # fmt: skip
        for kind, marker in ((FASTEST, "v"), (MOST, "^")):
            axes.scatter([best[kind].p90_ms], [best[kind].texts_per_second], s=160, marker=marker,
                         facecolors="none", edgecolors="black", label=kind)  # fmt: skip
        axes.set(title=f"{tokens} tokens", xlabel="P90 of an inference, ms",
                 ylabel="texts a second, per core")  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)
