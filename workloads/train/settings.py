"""Every setting of a training run: its type, default, unit and meaning. The only place that knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def setting(default: Any, meaning: str) -> Any:
    """Declare a field whose meaning the help and the manual show."""
    return field(default=default, metadata={"meaning": meaning})


def section(kind: type[Any], meaning: str) -> Any:
    """Declare a group of settings."""
    return field(default_factory=kind, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The shape of the model; a checkpoint fits one shape only."""

    vocabulary: int = setting(512, "tokens in the vocabulary")
    layers: int = setting(2, "transformer blocks")
    width: int = setting(64, "size of a token's vector")
    heads: int = setting(4, "attention heads")
    kv_heads: int = setting(2, "key and value heads; fewer than `heads` is grouped-query attention")
    ffn_width: int = setting(192, "inner width of the feed-forward network, or of one expert")
    rope_theta: float = setting(500000.0, "base of the rotary position embedding")
    norm_eps: float = setting(1e-5, "added to the mean square in RMSNorm")
    dropout: float = setting(0.0, "share of a block's output dropped in training, 0 to below 1; Llama uses 0")
    experts: int = setting(0, "experts a block; 0 makes the model dense")
    experts_per_token: int = setting(2, "experts that see a token (only with `experts`)")
    balance_weight: float = setting(0.01, "weight of the loss that spreads tokens evenly over experts (only with `experts`)")


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Where tokens come from."""

    source: Literal["synthetic", "files"] = setting(
        "synthetic", "synthetic: made up, learnable, needs no file; files: what prepare_data.py wrote"
    )
    files: tuple[str, ...] = setting((), "data sets of prepare_data.py, by the path of their .json file")
    prefetch_steps: int = setting(2, "steps read ahead by a thread; 0 reads when the step needs it")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How much is trained."""

    steps: int = setting(20, "optimizer steps of the whole run, resumed parts included")
    sequence_length: int = setting(64, "tokens a sequence")
    global_batch: int = setting(8, "sequences a step over all ranks; does not change with the number of ranks")
    micro_batch: int = setting(2, "sequences a rank puts through the model at once; the rest is accumulated")
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 leaves it alone")
    seed: int = setting(1, "initial weights, order of the data and dropout follow from it")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW with a cosine schedule."""

    lr: float = setting(3e-4, "highest learning rate")
    beta1: float = setting(0.9, "decay of the mean of gradients")
    beta2: float = setting(0.95, "decay of the mean of squared gradients")
    eps: float = setting(1e-8, "added to the denominator")
    weight_decay: float = setting(0.1, "of matrices; norms have none")
    warmup_steps: int = setting(2, "steps over which the learning rate rises linearly")
    decay_steps: int = setting(0, "step at which the cosine has reached its end; 0 means `train.steps`")
    min_lr_ratio: float = setting(0.1, "learning rate at the end, as a share of `lr`")


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """How the same arithmetic is done: speed and memory, not the result."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto takes GPUs where torch sees one (ROCm GPUs are named cuda, too)")
    precision: Literal["fp32", "bf16"] = setting("bf16", "of the arithmetic; weights and optimizer stay fp32")
    attention: Literal["auto", "flash", "efficient", "cudnn", "math"] = setting(
        "auto", "backend of scaled_dot_product_attention; auto lets torch choose"
    )
    recompute: Literal["none", "selective", "full"] = setting(
        "none", "activations thrown away and computed again in the backward pass: none, all but products and attention, or whole blocks"
    )
    compile: bool = setting(False, "torch.compile each block, and the loss where no tensor is split")
    compile_backend: str = setting("inductor", "backend of torch.compile")
    deterministic: bool = setting(False, "only algorithms that give the same bits each time; slower on GPUs")


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """How ranks share the work."""

    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "ddp: every rank holds the whole model; fsdp: weights, gradients and optimizer are sharded (FSDP2)"
    )
    tensor: int = setting(1, "ranks that share each matrix (DTensor); needs fsdp, and is best kept inside a node")
    reshard_after_forward: bool = setting(
        True, "fsdp: free a block's weights between forward and backward; false trades memory for traffic"
    )
    timeout_s: float = setting(1800.0, "longest a collective may take; keep it above the watchdog's limits, whose message says more")


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What survives a crash."""

    folder: str = setting("", "shared by all nodes; empty means `checkpoints` in the run's folder")
    every_steps: int = setting(10, "steps between checkpoints; 0 writes one only at the end and on SIGTERM")
    at_end: bool = setting(True, "write one after the last step; false is for runs that only measure")
    keep: int = setting(3, "complete checkpoints kept, newest first")
    asynchronous: bool = setting(True, "write while training goes on")
    failures_allowed: int = setting(2, "checkpoints in a row that may fail before the run stops")
    resume: str = setting(
        "auto",
        "auto: from the newest good checkpoint, if there is one; never; or the path of a checkpoint, once: a restart goes on from its own",
    )
    start_from: str = setting("", "path of a checkpoint whose weights (nothing else) start a run that has no checkpoint of its own")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What is told about the run."""

    prometheus_file: str = setting(
        "",
        "text file with the newest numbers for Prometheus; empty means `metrics.prom` in the run's folder, and one for the host's exporter",
    )
    print_every_steps: int = setting(1, "steps between lines on the terminal; steps.jsonl has every step")


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """When a rank that makes no progress is ended."""

    step_timeout_s: float = setting(600.0, "longest a step or a checkpoint may take; 0 switches the watchdog off")
    startup_timeout_s: float = setting(1200.0, "the same for start-up, loading, and the first step, which may compile")


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """A failure on purpose, to rehearse what the cluster does about it."""

    kind: Literal["none", "hang", "nan", "crash", "slow"] = setting(
        "none", "what goes wrong; slow means that every step from `step` on takes `slow_s` longer"
    )
    step: int = setting(5, "step at which it goes wrong")
    rank: int = setting(0, "rank in which it goes wrong")
    slow_s: float = setting(1.0, "seconds added to a step")
    once: bool = setting(True, "leave `drill.done` in the run's folder, so that the resumed run is spared")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    about: str = setting("", "what this configuration is and where its numbers come from")
    model: ModelSettings = section(ModelSettings, "the shape of the model")
    data: DataSettings = section(DataSettings, "where tokens come from")
    train: TrainSettings = section(TrainSettings, "how much is trained")
    optimizer: OptimizerSettings = section(OptimizerSettings, "AdamW with a cosine schedule")
    compute: ComputeSettings = section(ComputeSettings, "how the arithmetic is done")
    parallel: ParallelSettings = section(ParallelSettings, "how ranks share the work")
    checkpoint: CheckpointSettings = section(CheckpointSettings, "what survives a crash")
    telemetry: TelemetrySettings = section(TelemetrySettings, "what is told about the run")
    watchdog: WatchdogSettings = section(WatchdogSettings, "when a stuck rank is ended")
    drill: DrillSettings = section(DrillSettings, "a failure on purpose")
