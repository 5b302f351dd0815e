"""workloads.train.model, attention, moe and flops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from workloads.train.attention import attend
from workloads.train.flops import active_parameters, flops_per_token, parameters
from workloads.train.load_settings import load_settings
from workloads.train.model import Transformer, materialise, rotary_angles, rotate
from workloads.train.moe import Experts, balance_loss
from workloads.train.settings import ComputeSettings, ModelSettings, Settings

CPU = torch.device("cpu")


def make_model(settings: ModelSettings, compute: ComputeSettings | None = None, seed: int = 1) -> Transformer:
    """Create a model with its initial values."""
    with torch.device("meta"):
        model = Transformer(settings, compute or ComputeSettings())
    materialise(model, CPU, seed=seed, name="", layers=settings.layers)
    return model


class SavedNumbers:
    """Counts the numbers that autograd saves for the backward pass."""

    def __init__(self) -> None:
        """Start at 0."""
        self.numbers = 0

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor and save it."""
        self.numbers += tensor.numel()
        return tensor


def test_attention_is_causal() -> None:
    """A changed token does not change previous logits."""
    model = make_model(ModelSettings())
    tokens_BL = torch.randint(512, (2, 16), generator=torch.Generator().manual_seed(1))
    changed_BL = tokens_BL.clone()
    changed_BL[:, 9] = (changed_BL[:, 9] + 1) % 512
    first, second = model(tokens_BL)[0], model(changed_BL)[0]

    assert torch.equal(first[:, :9], second[:, :9])
    assert not torch.allclose(first[:, 9:], second[:, 9:])


def test_rotary_embedding_depends_on_the_distance_only() -> None:
    """The product of a query and a key is the same at equal distances."""
    angles_LC = rotary_angles(ModelSettings(width=32, heads=2), 12, CPU)
    q_C, k_C = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    q_LC, k_LC = rotate(q_C.expand(12, 16), angles_LC), rotate(k_C.expand(12, 16), angles_LC)

    assert float(q_LC[5] @ k_LC[2]) == pytest.approx(float(q_LC[11] @ k_LC[8]), abs=1e-5)
    assert float(q_LC[5] @ k_LC[2]) != pytest.approx(float(q_LC[5] @ k_LC[4]), abs=1e-3)


@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_attention_backends_match_the_definition(backend: str) -> None:
    """With two query heads per key head."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 8, 16, generator=generator) for heads in (4, 2, 2))
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4).masked_fill(hidden, float("-inf"))

    assert torch.allclose(attend(q, k, v, backend), scores.softmax(-1) @ v.repeat_interleave(2, 1), atol=1e-5)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("experts", [0, 4])
def test_recomputing_gives_the_same_gradients_with_less_memory(recompute: str, experts: int) -> None:
    """Fewer activations are saved for the backward pass."""
    model = ModelSettings(experts=experts)
    tokens_BL = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1))
    gradients, saved = [], []
    for choice in ("none", recompute):
        built = make_model(model, load_settings([], [f"compute.recompute={choice}"]).compute)
        with torch.autograd.graph.saved_tensors_hooks(count := SavedNumbers(), lambda tensor: tensor):
            logits_BLV, balance = built(tokens_BL)
        torch.autograd.backward(functional.cross_entropy(logits_BLV.flatten(0, 1), tokens_BL.flatten()) + balance)
        gradients.append([parameter.grad for parameter in built.parameters()])
        saved.append(count.numbers)

    assert all(torch.equal(left, right) for left, right in zip(*gradients, strict=True))
    assert saved[1] < saved[0]


def test_selective_recompute_repeats_no_matrix_product() -> None:
    """Full recompute does."""
    tokens_BL = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1))
    flops = {}
    for choice in ("none", "selective", "full"):
        built = make_model(ModelSettings(), load_settings([], [f"compute.recompute={choice}"]).compute)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(built(tokens_BL)[0].sum())
        flops[choice] = counter.get_total_flops()

    assert flops["selective"] == flops["none"] < flops["full"]


@pytest.mark.parametrize("ffn_width", [8, 6], ids=["grouped product", "one product per expert"])
def test_the_output_is_the_weighted_sum_of_the_chosen_experts(ffn_width: int) -> None:
    """By the definition, for each token; grouped products take rows of a multiple of 16 bytes."""
    settings = ModelSettings(width=16, ffn_width=ffn_width, experts=4, experts_per_token=2)
    layer = Experts(settings)
    materialise(layer, CPU, seed=3, name="x", layers=1)
    for parameter in layer.parameters():
        parameter.data.mul_(20)
    x_BLD = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    y_BLD, _ = layer(x_BLD)
    for x_D, y_D in zip(x_BLD.flatten(0, 1), y_BLD.flatten(0, 1), strict=True):
        share_E = layer.router(x_D).softmax(-1)
        weight_S, chosen_S = share_E.topk(2)
        outputs = [(functional.silu(x_D @ layer.gate_EDF[e]) * (x_D @ layer.up_EDF[e])) @ layer.down_EFD[e] for e in chosen_S.tolist()]

        assert torch.allclose(y_D, sum(w * y for w, y in zip(weight_S / weight_S.sum(), outputs, strict=True)), atol=1e-5)


def test_the_balance_loss_is_one_for_an_even_distribution() -> None:
    """It is four if one of four experts gets all tokens."""
    even = balance_loss(torch.full((8, 4), 0.25), torch.arange(8).remainder(4).unsqueeze(1))
    uneven = balance_loss(torch.eye(4)[0].expand(8, 4), torch.zeros(8, 1, dtype=torch.long))

    assert (float(even), float(uneven)) == (1.0, 4.0)


def test_initial_weights_depend_on_seed_and_name() -> None:
    """Another seed gives another model, and no two layers are equal."""
    first, same, other = (make_model(ModelSettings(), seed=seed) for seed in (1, 1, 2))

    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.get_parameter("output.weight"), other.get_parameter("output.weight"))
    assert not torch.equal(*(first.get_parameter(f"blocks.{index}.ffn.up.weight") for index in range(2)))
    assert float(first.get_parameter("embedding.weight").detach().std()) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("experts", [0, 4])
def test_the_computed_number_of_parameters_matches_the_model(experts: int) -> None:
    """With and without experts."""
    settings = ModelSettings(experts=experts)

    assert parameters(settings) == sum(parameter.numel() for parameter in make_model(settings).parameters())


def test_the_size_of_llama_matches_the_publication() -> None:
    """Llama 3.1 8B has 8.03 billion parameters, 7.50 billion without the embedding; 6 N + 12 L H Q T FLOPs per token."""
    model = load_settings(["llama-3.1-8b"], []).model

    assert parameters(model) == 8_030_261_248
    assert active_parameters(model) == parameters(model) - 128256 * 4096
    assert flops_per_token(model, 8192) == pytest.approx(6 * 7_504_924_672 + 12 * 32 * 4096 * 8192)


def test_only_the_experts_of_a_token_count_as_active() -> None:
    """The FLOPs per token depend on experts_per_token, not on the number of experts."""
    few, many = Settings().model, replace(Settings().model, experts=8, experts_per_token=1)

    assert active_parameters(many) == active_parameters(few) + 2 * 64 * 8
    assert parameters(many) > 2 * parameters(few)
