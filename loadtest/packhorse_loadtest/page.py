"""The load report as one HTML page: its figures, and latency by percentile as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from packhorse_loadtest.recorder import Recorder
from packhorse_loadtest.report import Report, table

PERCENTILES = (0.0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97.5, 99, 99.5, 99.9, 99.95, 99.99, 100)
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 300, 70, 40
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 860px; margin: 2em auto; padding: 0 1em;
       color: #222; background: #fff }
pre { background: #f5f5f5; padding: 1em; overflow-x: auto }
.warning { background: #fff3cd; padding: .6em 1em }
svg { width: 100%; height: auto } text { font-size: 12px; fill: #555 }
"""


def latency_points(recorder: Recorder) -> list[tuple[float, float]]:
    """Return (percentile, milliseconds) of all successes; none where there are none."""
    histogram = recorder.everything()
    if not histogram.get_total_count():
        return []
    return [(p, histogram.get_value_at_percentile(p) / 1000) for p in PERCENTILES]


def make_page(report: Report, points: Sequence[tuple[float, float]], title: str) -> str:
    """Write the page; it loads nothing from elsewhere."""
    warnings = "".join(f'<p class="warning">{escape(w)}</p>' for w in report.tester.warnings)
    picture = _picture(points) if points else "<p>No request was answered well.</p>"
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style>
<h1>{escape(title)}</h1>
{warnings}<pre>{escape(table(report))}</pre>
<h2>Latency by percentile</h2>
{picture}
</html>
"""


def _picture(points: Sequence[tuple[float, float]]) -> str:
    """Draw a curve whose horizontal axis gives each further nine the same room."""
    top = _round_up(max(ms for _, ms in points))

    def x(percentile: float) -> float:
        nines = -math.log10(max(1 - percentile / 100, 1e-5))
        return LEFT + nines / 5 * (WIDTH - LEFT - 20)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - ms / top * (HEIGHT - BOTTOM - 20)

    curve = " ".join(f"{x(p):.1f},{y(ms):.1f}" for p, ms in points)
    marks = [
        f'<text x="{x(p):.1f}" y="{HEIGHT - 15}" text-anchor="middle">{label}</text>'
        for p, label in ((0, "min"), (50, "p50"), (90, "p90"), (99, "p99"), (99.9, "p99.9"),
                         (99.99, "p99.99"), (100, "max"))
    ]  # fmt: skip
    for part in range(5):
        ms = top * part / 4
        marks.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g} ms</text>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="latency by percentile">'
        f'{"".join(marks)}<polyline points="{curve}" fill="none" stroke="#0b6" stroke-width="2"/>'
        "</svg>"
    )


def _round_up(value: float) -> float:
    """Return the next 1, 2, 4 or 8 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if value <= step * power)
