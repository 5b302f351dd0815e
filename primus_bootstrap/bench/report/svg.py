"""The drawings of the page: how values lie, with the floor; and what a row of devices showed before. SVG, coloured by the page's style."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from primus_bootstrap.bench.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.bench.report.bench_report import Past, Value
    from primus_bootstrap.core.verdicts import Outcome

_WIDTH, _LEFT, _TOP, _DRAWN, _AXIS = 640.0, 8.0, 18.0, 96.0, 34.0
_BINS = 52
_STEP = (_WIDTH - 2 * _LEFT) / _BINS
# Up to so many values in one bin, each is a mark of its own; beyond it, bars.
_MOST_MARKS = 8
# From the bottom up: what is wrong stands on the axis, where it is seen in a high bar too.
_STACK: tuple[Outcome, ...] = ("fail", "unknown", "skipped", "pass")
# So many earlier benches are drawn; the JSON has them all.
MOST_POINTS = 12
_SPARK_WIDTH, _SPARK_HEIGHT = 120.0, 26.0
# A change below this much fills no more than its share of the height: noise is not to look like a fall.
_SMALLEST_RANGE = 0.05


def number(value: float) -> str:
    """Return a value as people read it: four digits, no exponent where it can be helped."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Return three to seven round numbers between two values."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough)
    first = math.ceil(low / step)
    return tuple(number * step for number in range(first, math.floor(high / step) + 1))


def distribution(values: Sequence[Value], title: str) -> Markup:
    """Draw how the values of one series lie: a mark or bar a value by verdict, the floor as a dashed line, the median below the axis."""
    floor = values[0].floor
    low, high = _range([value.value for value in values] + ([] if floor is None else [floor]))

    def across(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - 2 * _LEFT)

    bins: dict[int, list[Value]] = {}
    for value in sorted(values, key=lambda each: _STACK.index(each.verdict)):
        bins.setdefault(min(_BINS - 1, int((value.value - low) / (high - low) * _BINS)), []).append(value)
    most = max(len(each) for each in bins.values())
    draw = _marks if most <= _MOST_MARKS else _bars
    base = _TOP + _DRAWN
    drawn = [draw(_LEFT + _STEP * place, each, most) for place, each in sorted(bins.items())]
    return tag(
        "svg",
        tag("line", class_="axis", x1=_LEFT, x2=_WIDTH - _LEFT, y1=base, y2=base),
        *(_tick(across(each), base, each) for each in ticks(low, high)),
        *drawn,
        *([] if floor is None else _floor_line(across(floor), floor)),
        _median_mark(across(median(value.value for value in values)), base),
        viewBox=f"0 0 {_WIDTH:g} {base + _AXIS:g}",
        role="img",
        aria_label=title,
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.04 * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room


def _tick(x: float, base: float, value: float) -> Markup:
    line = tag("line", class_="axis", x1=x, x2=x, y1=base, y2=base + 4)
    return join([line, tag("text", number(value), x=x, y=base + 16, text_anchor="middle")])


def _median_mark(x: float, base: float) -> Markup:
    shape = tag("path", tag("title", "median"), class_="median", d=f"M{x:.1f} {base + 20:.1f}l-5 9h10z")
    anchor = "end" if x > _WIDTH - 90 else "start"
    return join([shape, tag("text", "median", x=x + (9 if anchor == "start" else -9), y=base + 30, text_anchor=anchor)])


def _floor_line(x: float, floor: float) -> list[str]:
    anchor = "end" if x > _WIDTH / 2 else "start"
    line = tag("line", class_="floor", x1=x, x2=x, y1=_TOP - 4, y2=_TOP + _DRAWN)
    return [line, tag("text", f"floor {number(floor)}", class_="floor-text", x=x, y=_TOP - 7, text_anchor=anchor)]


def _marks(left: float, values: Sequence[Value], most: int) -> Markup:
    """Stack one mark a value: a dot passes, a cross fails, a ring is unknown."""
    step = min(_STEP, _DRAWN / most)
    x, size = left + _STEP / 2, 0.4 * step
    marks = []
    for row, value in enumerate(values):
        y = _TOP + _DRAWN - step * (row + 0.5)
        title = tag("title", value.host, f" device {value.device}" if value.device else "", f": {value.value:g}")
        if value.verdict == "fail":
            shape = f"M{x - size:.1f} {y - size:.1f}l{2 * size:.1f} {2 * size:.1f}m0 {-2 * size:.1f}l{-2 * size:.1f} {2 * size:.1f}"
            marks.append(tag("path", title, class_="cross fail", d=shape))
        else:
            marks.append(tag("circle", title, class_=f"dot {value.verdict}", cx=round(x, 1), cy=round(y, 1), r=round(size, 1)))
    return join(marks)


def _bars(left: float, values: Sequence[Value], most: int) -> Markup:
    """Draw one bar a verdict, on each other; none is so low that it is not seen."""
    counts = Counter(value.verdict for value in values)
    bars, bottom = [], _TOP + _DRAWN
    for word in _STACK:
        if counts[word]:
            height = max(2.0, _DRAWN * counts[word] / most)
            bottom -= height
            size = {"x": left + 0.5, "y": round(bottom, 1), "width": _STEP - 1, "height": round(height, 1)}
            bars.append(tag("rect", tag("title", f"{counts[word]} {word}"), class_=f"bar {word}", **size))
    return join(bars)


def sparkline(pasts: Sequence[Past], now: dict[str, float], title: str) -> Markup:
    """Draw what devices showed before and now, one line a device, as a share of its own median (the line in the middle)."""
    lines = {past.device: _shares(past, now.get(past.device)) for past in pasts}
    far = max(_SMALLEST_RANGE, *(abs(share - 1) for each in lines.values() for share in each))
    longest = max(len(each) for each in lines.values())
    step = (_SPARK_WIDTH - 8) / max(1, longest - 1)

    def point(place: int, share: float) -> tuple[float, float]:
        return 4 + step * place, _SPARK_HEIGHT / 2 - (share - 1) / far * (_SPARK_HEIGHT / 2 - 3)

    drawn = []
    for device, shares in lines.items():
        points = [point(longest - len(shares) + place, share) for place, share in enumerate(shares)]
        drawn.append(tag("polyline", points=" ".join(f"{x:.0f},{y:.1f}" for x, y in points)))
        if device in now:
            x, y = points[-1]
            drawn.append(tag("circle", cx=round(x), cy=round(y, 1), r=2))
    middle = tag("line", class_="axis", x1=2, x2=_SPARK_WIDTH - 2, y1=_SPARK_HEIGHT / 2, y2=_SPARK_HEIGHT / 2)
    return tag("svg", middle, *drawn, class_="spark", viewBox=f"0 0 {_SPARK_WIDTH:g} {_SPARK_HEIGHT:g}", role="img", aria_label=title)


def _shares(past: Past, now: float | None) -> list[float]:
    values = [point.value for point in past.points][-MOST_POINTS:]
    middle = median(values)
    return [value / middle if middle else 1.0 for value in (*values, *([] if now is None else [now]))]
