"""A simulated fabric with bad hosts, bad paths, flaky hosts, hosts that hang, and wrong answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.bench.fabric.bisection import bisect_fabric

if TYPE_CHECKING:
    from primus_bootstrap.bench.fabric.bisection import BisectionResult
    from primus_bootstrap.bench.results.group_records import Answer


@dataclass
class Fabric:
    """A fabric. `flaky` is the probability that a host spoils a run, `noise` that an answer is wrong; groups larger than `largest` fail."""

    size: int
    bad: frozenset[str] = frozenset()
    paths: frozenset[frozenset[str]] = frozenset()
    flaky: dict[str, float] = field(default_factory=dict)
    hangs: frozenset[str] = frozenset()
    noise: float = 0.0
    largest: int | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - luck, no secret
    asked: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def hosts(self) -> list[str]:
        """All hosts, by name."""
        return [f"gpu{number:04}" for number in range(self.size)]

    def probe(self, group: tuple[str, ...]) -> Answer:
        """Run a group."""
        assert len(group) > 1, "a run needs two hosts"
        assert len(set(group)) == len(group), "a host takes part once"
        self.asked.append(group)
        present = set(group)
        if self.hangs & present:
            return "unknown"
        fails = bool(self.bad & present) or len(group) > (self.largest or self.size) or any(path <= present for path in self.paths)
        fails = fails or any(self.rng.random() < often for host, often in self.flaky.items() if host in present)
        return "fail" if fails != (self.rng.random() < self.noise) else "pass"

    def bisect(self, seed: int = 0) -> BisectionResult:
        """Search the fabric."""
        return bisect_fabric(self.hosts, self.probe, seed=seed)


def draw_fabric(
    seed: str, size: int, *, bad: int = 0, paths: int = 0, flaky: int = 0, noise: float = 0.0, largest: int | None = None
) -> Fabric:
    """Return a fabric with faults at random hosts; no host has two of them."""
    rng = random.Random(seed)  # noqa: S311 - luck, no secret
    names = rng.sample(Fabric(size).hosts, bad + flaky + 2 * paths)
    ends = names[bad + flaky :]
    return Fabric(
        size,
        bad=frozenset(names[:bad]),
        flaky=dict.fromkeys(names[bad : bad + flaky], 0.5),
        paths=frozenset(frozenset(ends[2 * number : 2 * number + 2]) for number in range(paths)),
        noise=noise,
        largest=largest,
        rng=rng,
    )


def tally(fabric: Fabric, found: BisectionResult) -> Counter[str]:
    """Count hosts by kind and state (`bad fail`, `good fail`, ...), and paths by `right` or `wrong`; `end` is a host of a bad path."""
    ends = {host for path in fabric.paths for host in path}
    kinds = {
        **dict.fromkeys(ends, "end"),
        **dict.fromkeys(fabric.bad, "bad"),
        **dict.fromkeys(fabric.flaky, "flaky"),
        **dict.fromkeys(fabric.hangs, "hanging"),
    }
    counted = Counter(f"{kinds.get(host_state.hosts[0], 'good')} {host_state.state}" for host_state in found.hosts)
    counted.update("path right" if frozenset(path.hosts) in fabric.paths else "path wrong" for path in found.paths)
    return counted
