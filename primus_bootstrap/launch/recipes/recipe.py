"""A recipe: how to train a model with a backend on a kind of GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.structured import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

# What the numbers of a recipe rest on, strongest first.
PUBLISHED, OUT_OF_MEMORY, DERIVED = "published", "limited by a real out-of-memory", "derived"
DDP, DISTRIBUTED_OPTIMIZER, FSDP = "ddp", "distributed_optimizer", "fsdp"
NONE, SELECTIVE, FULL = "none", "selective", "full"


@readable
@dataclass(frozen=True)
class Layout:
    """How the ranks share the work. The product of tensor, pipeline and context divides the number of GPUs; the rest is data parallel."""

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1  # chunks of layers per pipeline stage
    context: int = 1
    expert: int = 1  # ranks of a data-parallel group that share the experts
    data: str = DISTRIBUTED_OPTIMIZER  # what data-parallel ranks share: ddp nothing, distributed_optimizer its states, fsdp everything
    shards: int = 0  # fsdp: ranks over which one copy is sharded; 0: all data-parallel ranks
    sequence_parallel: bool = True  # with tensor > 1, norms and residuals are split along the sequence

    @property
    def replicas(self) -> int:
        """The data-parallel size."""
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def text(self) -> str:
        """The layout in the field's short forms, such as TP8 PP8 DP2 distributed optimizer; sizes of 1 are left out, but not of DP."""
        sizes = {"TP": self.tensor, "PP": self.pipeline, "VPP": self.virtual_pipeline, "CP": self.context, "EP": self.expert}
        return " ".join([*(f"{name}{size}" for name, size in sizes.items() if size > 1), f"DP{self.replicas}", self.data.replace("_", " ")])


@readable
@dataclass(frozen=True)
class Batch:
    """Sequences per step (`all`), per forward pass of a rank (`micro`), and tokens per sequence (`length`)."""

    length: int
    micro: int
    all: int


@readable
@dataclass(frozen=True)
class Recompute:
    """What the backward pass computes again. `layers`: full only; how many layers of each chunk of a rank, 0 for all."""

    kind: str = NONE
    layers: int = 0


@dataclass(frozen=True)
class Recipe:
    """One recipe. `keys` are settings of the backend, by its own names, that the other fields do not express."""

    name: str
    model: str
    backend: str
    gpu: str
    precision: str
    layout: Layout
    batch: Batch
    recompute: Recompute = field(default_factory=Recompute)
    keys: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  # file and commit, or paper
    evidence: str = DERIVED
    why: str = ""  # why these choices

    @property
    def micro_batches(self) -> int:
        """Forward passes of a rank per step."""
        return max(1, self.batch.all // (self.batch.micro * self.layout.replicas))
