"""The settings of a training run: type, default, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def setting(default: Any, meaning: str, **limits: float) -> Any:
    """Declare a setting. The help shows its meaning.

    `limits` of a number are at_least, above, at_most and below. primus-cli reads them from this source, and checks values before a start.
    """
    return field(default=default, metadata={"meaning": meaning, "limits": limits})


def section(kind: type[Any], meaning: str) -> Any:
    """Declare a group of settings."""
    return field(default_factory=kind, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The shape of the model. A checkpoint can be loaded with the same shape only."""

    vocabulary: int = setting(512, "tokens in the vocabulary", at_least=1)
    layers: int = setting(2, "transformer blocks", at_least=1)
    width: int = setting(64, "size of a token's vector", at_least=1)
    heads: int = setting(4, "attention heads", at_least=1)
    kv_heads: int = setting(2, "key and value heads; fewer than `heads` is grouped-query attention", at_least=1)
    ffn_width: int = setting(192, "inner width of the feed-forward network, or of one expert", at_least=1)
    rope_theta: float = setting(500000.0, "base of the rotary position embedding", above=0)
    rope_factor: float = setting(
        1.0, "Llama 3.1's scaling of low rotary frequencies, for longer sequences; 1 is none, Llama 3.1 has 8", at_least=1
    )
    rope_low_frequency: float = setting(1.0, "wavelengths above rope_trained_length over this are scaled (only with rope_factor)", above=0)
    rope_high_frequency: float = setting(4.0, "wavelengths below rope_trained_length over this are kept (only with rope_factor)", above=0)
    rope_trained_length: int = setting(8192, "sequence length before the scaling (only with rope_factor)", at_least=1)
    norm_eps: float = setting(1e-5, "added to the mean square in RMSNorm", above=0)
    dropout: float = setting(0.0, "share of a block's output that is dropped in training, 0 to below 1; Llama uses 0", at_least=0, below=1)
    experts: int = setting(0, "experts per block; 0 makes the model dense", at_least=0)
    experts_per_token: int = setting(2, "experts that process a token (only with `experts`)")
    balance_weight: float = setting(
        0.01, "weight of the loss that distributes tokens evenly over experts (only with `experts`)", at_least=0
    )


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The training data."""

    source: Literal["synthetic", "files"] = setting(
        "synthetic", "synthetic: generated data with a rule to learn; files: data sets of prepare_data.py"
    )
    files: tuple[str, ...] = setting((), "data sets of prepare_data.py, by the path of their .json file")
    prefetch_steps: int = setting(2, "steps that a thread prefetches; 0 reads each step on demand", at_least=0)


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Steps and batch sizes."""

    steps: int = setting(20, "optimizer steps of the whole run, resumed parts included", at_least=1)
    sequence_length: int = setting(64, "tokens per sequence", at_least=1)
    global_batch: int = setting(8, "sequences per step over all ranks; independent of the number of ranks", at_least=1)
    micro_batch: int = setting(2, "sequences per forward pass of a rank; gradients of several passes are accumulated", at_least=1)
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 disables clipping", at_least=0)
    seed: int = setting(1, "random seed of initial weights, data order and dropout")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW with a cosine schedule."""

    lr: float = setting(3e-4, "peak learning rate", at_least=0)
    beta1: float = setting(0.9, "decay of the mean of gradients", at_least=0, below=1)
    beta2: float = setting(0.95, "decay of the mean of squared gradients", at_least=0, below=1)
    eps: float = setting(1e-8, "added to the denominator", above=0)
    weight_decay: float = setting(0.1, "weight decay of matrices; norms have none", at_least=0)
    warmup_steps: int = setting(2, "steps of linear warm-up of the learning rate", at_least=0)
    decay_steps: int = setting(0, "step at which the cosine ends; 0 means `train.steps`", at_least=0)
    min_lr_ratio: float = setting(0.1, "final learning rate, as a share of `lr`", at_least=0, at_most=1)


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Device, precision, and options that affect speed and memory."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto uses GPUs if torch sees one; ROCm GPUs are also called cuda")
    precision: Literal["fp32", "bf16", "fp8"] = setting(
        "bf16",
        "precision of the arithmetic; weights and optimizer state are fp32; fp8: matrix products of blocks in 8 bits (torchao), else bf16",
    )
    fp8_recipe: Literal["tensorwise", "rowwise", "emulated"] = setting(
        "tensorwise",
        "scales of fp8: per tensor or per row; emulated rounds like tensorwise, and computes on every device, slowly, for tests",
    )
    attention: Literal["auto", "flash", "efficient", "cudnn", "math"] = setting(
        "auto", "backend of scaled_dot_product_attention; with auto, torch chooses"
    )
    recompute: Literal["none", "selective", "full"] = setting(
        "none", "activations that the backward pass recomputes: none, all except matrix products and attention, or whole blocks"
    )
    compile: bool = setting(False, "use torch.compile for each block, and for the loss without tensor parallelism")
    compile_backend: str = setting("inductor", "backend of torch.compile")
    deterministic: bool = setting(False, "use only algorithms with bit-identical results; slower on GPUs")


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """Distribution over the ranks."""

    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "ddp: every rank has the whole model; fsdp: weights, gradients and optimizer state are sharded (FSDP2)"
    )
    tensor: int = setting(1, "ranks that share each matrix (DTensor); requires fsdp; use it within a node", at_least=1)
    async_tensor: bool = setting(
        False, "exchange parts of activations during the matrix products of `tensor`; requires compute.compile and GPUs with peer access"
    )
    context: int = setting(1, "ranks that share each sequence, for long sequences", at_least=1)
    pipeline: int = setting(1, "ranks with different blocks; requires fsdp; the outermost, for exchange between nodes", at_least=1)
    virtual_pipeline: int = setting(1, "groups of blocks per rank of `pipeline`: 1 is the schedule 1F1B, more are interleaved", at_least=1)
    expert: int = setting(1, "ranks that share the experts; requires fsdp; tokens are sent to the rank of their expert", at_least=1)
    reshard_after_forward: bool = setting(
        True, "fsdp: free a block's weights between forward and backward; false uses more memory and less bandwidth"
    )
    timeout_s: float = setting(
        1800.0, "time limit of a collective (s); must exceed the watchdog's limits, whose message names step and phase", above=0
    )


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Low-rank adaptation: train small matrices beside frozen weights."""

    rank: int = setting(0, "rank of the added matrices; 0 trains all weights", at_least=0)
    alpha: float = setting(16.0, "the addition is multiplied by alpha / rank", above=0)
    targets: tuple[str, ...] = setting(
        ("attention.query", "attention.key", "attention.value", "attention.output"),
        "matrices of a block that get an addition; dense models also have ffn.gate, ffn.up and ffn.down",
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Checkpoints and resume."""

    folder: str = setting("", "folder of the checkpoints, shared by all nodes; empty means `checkpoints` in the run folder")
    every_steps: int = setting(10, "steps between checkpoints; 0 writes one only at the end and on SIGTERM", at_least=0)
    at_end: bool = setting(True, "write a checkpoint after the last step; use false for benchmarks")
    keep: int = setting(3, "number of complete checkpoints to keep, newest first", at_least=1)
    asynchronous: bool = setting(True, "write checkpoints in the background")
    failures_allowed: int = setting(2, "consecutive failed checkpoints that are allowed before the run stops", at_least=0)
    resume: str = setting(
        "auto",
        "auto: resume from the newest good checkpoint, if any; never; or the path of a checkpoint (a restart resumes from its own newest)",
    )
    start_from: str = setting(
        "", "path of a checkpoint, or of a folder with weights of Hugging Face, whose weights initialize a run without a checkpoint"
    )
    export: str = setting("", "folder for weights in the format of Hugging Face, written after the last step; empty means none")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Metrics of the run."""

    prometheus_file: str = setting(
        "",
        "text file with the latest metrics for Prometheus; empty: `metrics.prom` in the run folder, and a file for the host's exporter",
    )
    print_every_steps: int = setting(1, "steps between printed lines; steps.jsonl contains every step", at_least=1)


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """Time limits after which the watchdog ends a rank without progress."""

    step_timeout_s: float = setting(600.0, "time limit of a step or a checkpoint (s); 0 disables the watchdog", at_least=0)
    startup_timeout_s: float = setting(1200.0, "time limit of start-up, loading, and the first step, which may compile (s)", at_least=0)


@dataclass(frozen=True, slots=True)
class FaultInjectionSettings:
    """Fault injection, to test failure handling."""

    kind: Literal["none", "hang", "nan", "crash", "slow"] = setting(
        "none", "the fault; slow: every step from `step` on takes `slow_s` longer"
    )
    step: int = setting(5, "step of the fault")
    rank: int = setting(0, "rank of the fault")
    slow_s: float = setting(1.0, "seconds added to a step", at_least=0)
    once: bool = setting(True, "write `drill.done` to the run folder, so that the resumed run has no fault")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings."""

    about: str = setting("", "description of this configuration and the source of its values")
    backend: Literal["native"] = setting("native", "what trains; primus-cli starts the programs of other backends itself")
    estimate: Literal["refuse", "warn", "skip"] = setting(
        "refuse", "what primus-cli does with a run that does not fit into the memory of its GPUs by its estimate; the trainer does nothing"
    )
    model: ModelSettings = section(ModelSettings, "the shape of the model")
    data: DataSettings = section(DataSettings, "the training data")
    train: TrainSettings = section(TrainSettings, "steps and batch sizes")
    optimizer: OptimizerSettings = section(OptimizerSettings, "AdamW with a cosine schedule")
    compute: ComputeSettings = section(ComputeSettings, "device, precision, speed and memory")
    parallel: ParallelSettings = section(ParallelSettings, "distribution over the ranks")
    lora: LoraSettings = section(LoraSettings, "low-rank adaptation")
    checkpoint: CheckpointSettings = section(CheckpointSettings, "checkpoints and resume")
    telemetry: TelemetrySettings = section(TelemetrySettings, "metrics of the run")
    watchdog: WatchdogSettings = section(WatchdogSettings, "time limits of the watchdog")
    drill: FaultInjectionSettings = section(FaultInjectionSettings, "fault injection")
