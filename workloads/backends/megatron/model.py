"""What Megatron-LM asks of a program that pre-trains a GPT model: data, one forward step, and the loss."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank, get_batch_on_this_tp_rank
from megatron.training import get_args
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.backends.common.step_clock import StepClock


_PARTS = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")


def datasets(samples: Any, vp_stage: int | None = None) -> Any:
    """Return the data sets for training, validation and test, with the given numbers of samples."""
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
    )
    kind = MockGPTDataset if args.mock_data else GPTDataset
    return BlendedMegatronDatasetBuilder(kind, samples, partial(_has_data, vp_stage), config).build()


datasets.is_distributed = True  # type: ignore[attr-defined] # each rank builds its own: Megatron-LM reads this attribute


def _has_data(vp_stage: int | None) -> bool:
    return bool(parallel_state.get_tensor_model_parallel_rank() == 0 and is_first_or_last_pipeline_stage(vp_stage))


class ForwardStep:
    """Megatron-LM calls it for each micro-batch, on every rank."""

    def __init__(self, clock: StepClock) -> None:
        """Take the clock, which is told of each step."""
        self._clock = clock

    def __call__(self, data: Iterator[dict[str, Any]], model: Any, *_args: object) -> tuple[torch.Tensor, Any]:
        """Return the model's output for the next micro-batch, and the function that computes its loss."""
        if model.training:
            self._clock.begin(get_args().curr_iteration + 1)
        with self._clock.phase("data"):
            batch = _batch(data, get_attr_wrapped_model(model, "vp_stage"))
        output = model(
            batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"], loss_mask=batch["loss_mask"]
        )
        return output, partial(loss, batch["loss_mask"], spoiled=self._clock.spoils())


def _batch(data: Iterator[dict[str, Any]], vp_stage: int | None) -> dict[str, Any]:
    """Return this rank's part of a micro-batch; the stages in the middle of a pipeline need none."""
    if not is_first_or_last_pipeline_stage(vp_stage):
        return dict.fromkeys(_PARTS)
    args = get_args()
    rank = parallel_state.get_tensor_model_parallel_rank()
    batch: dict[str, Any] = {}
    if rank == 0:
        found = next(data)
        batch = {name: found[name].cuda(non_blocking=True) if found.get(name) is not None else None for name in _PARTS}
        batch.update(cu_seqlens=None, cu_seqlens_padded=None, max_seqlen=None, local_cp_size=None, hybrid_cp_group=None)
    batch = get_batch_on_this_tp_rank(
        batch,
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(),
        is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(),
    )
    return dict(get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=parallel_state.get_context_parallel_group()))


def loss(
    mask: torch.Tensor, output: torch.Tensor, *, spoiled: bool = False, **_unused: object
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return the summed loss of a micro-batch, its number of tokens, and both for the log; Megatron-LM divides them."""
    weights = mask.view(-1).float()
    total = torch.sum(output.view(-1).float() * weights) * (math.nan if spoiled else 1.0)
    tokens = weights.sum().clone().detach().to(torch.int)
    if get_args().check_for_nan_in_loss_and_grad:
        check = get_rerun_state_machine().validate_result
        check(result=total, rejection_func=torch.isnan, message="the loss is NaN", tolerance=0.0, fatal=True)
        check(result=total, rejection_func=torch.isinf, message="the loss is infinite", tolerance=0.0, fatal=True)
    return total, tokens, {"lm loss": torch.cat([total.clone().detach().view(1), tokens.view(1)])}
