"""Compute the coordinates of the drawings in the HTML page. The templates write them as SVG."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import DeviceHistory, ReportedValue
    from primus_bootstrap.core.verdicts import Outcome

# All sizes are in SVG user units.
WIDTH, LEFT, TOP, PLOT_HEIGHT, AXIS_HEIGHT = 640.0, 8.0, 18.0, 96.0, 34.0
BASELINE = TOP + PLOT_HEIGHT
BINS = 52
BIN_WIDTH = (WIDTH - 2 * LEFT) / BINS
# A bin with more values than this is drawn as bars instead of one mark for each value.
MAX_MARKS = 8
# From the bottom up: failures stay visible at the foot of a high bar.
STACK_ORDER: tuple[Outcome, ...] = ("fail", "unknown", "skipped", "pass")
MIN_BAR_HEIGHT = 2.0
# Only the latest benches are drawn; the JSON contains all of them.
MAX_POINTS = 12
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 26.0
# A smaller change does not fill the height, so that noise does not look like a drop.
MIN_SPARK_RANGE = 0.05

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a horizontal position."""

    x: float
    text: str
    anchor: Anchor


@dataclass(frozen=True, slots=True)
class Mark:
    """One value; `size` is half its width."""

    x: float
    y: float
    size: float
    verdict: Outcome
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """All values of one bin with the same verdict."""

    x: float
    y: float
    width: float
    height: float
    verdict: Outcome
    title: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of one series: either marks or bars, the floor as a vertical line, the median below the axis."""

    ticks: tuple[Label, ...]
    marks: tuple[Mark, ...]
    bars: tuple[Bar, ...]
    floor: Label | None
    median: Label
    width: float = WIDTH
    height: float = BASELINE + AXIS_HEIGHT
    left: float = LEFT
    top: float = TOP
    baseline: float = BASELINE


@dataclass(frozen=True, slots=True)
class Curve:
    """The history of one device; with `has_current` the last point is the value of this bench."""

    points: tuple[tuple[float, float], ...]
    has_current: bool


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The history of a host's devices as shares of their own median, which is the line in the middle."""

    text: str
    curves: tuple[Curve, ...]
    width: float = SPARK_WIDTH
    height: float = SPARK_HEIGHT


def number(value: float) -> str:
    """Return a value with four digits; large values as whole numbers."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Return three to seven round numbers in a range."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return tuple(index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1))


def distribution(values: Sequence[ReportedValue]) -> Distribution:
    """Return the drawing of the values of one series."""
    floor = values[0].floor
    low, high = _range([value.value for value in values] + ([] if floor is None else [floor]))

    def position(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - 2 * LEFT), 1)

    bins: dict[int, list[ReportedValue]] = {}
    for value in sorted(values, key=lambda value: STACK_ORDER.index(value.verdict)):
        bins.setdefault(min(BINS - 1, int((value.value - low) / (high - low) * BINS)), []).append(value)
    highest = max(len(members) for members in bins.values())
    columns = [(LEFT + BIN_WIDTH * index, members) for index, members in sorted(bins.items())]
    few = highest <= MAX_MARKS
    middle = position(median(value.value for value in values))
    return Distribution(
        ticks=tuple(Label(position(tick), number(tick), "middle") for tick in ticks(low, high)),
        marks=tuple(mark for left, members in columns for mark in _marks(left, members, highest)) if few else (),
        bars=() if few else tuple(bar for left, members in columns for bar in _bars(left, members, highest)),
        floor=None if floor is None else _floor_label(position(floor), floor),
        median=Label(middle, "median", "end" if middle > WIDTH - 90 else "start"),
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.04 * (high - low) or 0.02 * abs(high) or 1.0
    return low - margin, high + margin


def _floor_label(x: float, floor: float) -> Label:
    return Label(x, f"floor {number(floor)}", "end" if x > WIDTH / 2 else "start")


def _marks(left: float, values: Sequence[ReportedValue], highest: int) -> list[Mark]:
    step = min(BIN_WIDTH, PLOT_HEIGHT / highest)
    x, size = round(left + BIN_WIDTH / 2, 1), round(0.4 * step, 1)
    return [
        Mark(
            x=x,
            y=round(BASELINE - step * (row + 0.5), 1),
            size=size,
            verdict=value.verdict,
            title=f"{value.host}{f' device {value.device}' if value.device else ''}: {value.value:g}",
        )
        for row, value in enumerate(values)
    ]


def _bars(left: float, values: Sequence[ReportedValue], highest: int) -> list[Bar]:
    """Return one bar for each verdict, stacked. Even a single value gets a visible height."""
    counts = Counter(value.verdict for value in values)
    bars, bottom = [], BASELINE
    for verdict in STACK_ORDER:
        if counts[verdict]:
            height = max(MIN_BAR_HEIGHT, PLOT_HEIGHT * counts[verdict] / highest)
            bottom -= height
            title = f"{counts[verdict]} {verdict}"
            bars.append(Bar(round(left + 0.5, 1), round(bottom, 1), round(BIN_WIDTH - 1, 1), round(height, 1), verdict, title))
    return bars


def sparkline(histories: Sequence[DeviceHistory], current: Mapping[str, float], text: str) -> Sparkline:
    """Return the drawing of a host's history in one series.

    Args:
        current: The value of this bench by device.
    """
    shares = {history.device: _shares(history, current.get(history.device)) for history in histories}
    reach = max(MIN_SPARK_RANGE, *(abs(share - 1) for device_shares in shares.values() for share in device_shares))
    longest = max(len(device_shares) for device_shares in shares.values())
    step = (SPARK_WIDTH - 8) / max(1, longest - 1)

    def point(index: int, share: float) -> tuple[float, float]:
        return round(4 + step * index, 1), round(SPARK_HEIGHT / 2 - (share - 1) / reach * (SPARK_HEIGHT / 2 - 3), 1)

    curves = [
        Curve(
            tuple(point(longest - len(device_shares) + index, share) for index, share in enumerate(device_shares)),
            has_current=device in current,
        )
        for device, device_shares in shares.items()
    ]
    return Sparkline(text, tuple(curves))


def _shares(history: DeviceHistory, current: float | None) -> list[float]:
    """Return values as shares of the median of the earlier ones, the current value last."""
    values = [point.value for point in history.points][-MAX_POINTS:]
    middle = median(values)
    return [value / middle if middle else 1.0 for value in (*values, *([] if current is None else [current]))]
