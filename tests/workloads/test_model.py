"""workloads.train.model, attention, moe, flops: the arithmetic of the model."""

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
    """Make a model with its initial values."""
    with torch.device("meta"):
        model = Transformer(settings, compute or ComputeSettings())
    materialise(model, CPU, seed=seed, name="", layers=settings.layers)
    return model


class Kept:
    """Counts the numbers that autograd keeps for the backward pass."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.numbers = 0

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor and keep it."""
        self.numbers += tensor.numel()
        return tensor


def test_a_position_never_sees_those_behind_it() -> None:
    """Changing a token changes no logits before it."""
    model = make_model(ModelSettings())
    tokens_BL = torch.randint(512, (2, 16), generator=torch.Generator().manual_seed(1))
    changed_BL = tokens_BL.clone()
    changed_BL[:, 9] = (changed_BL[:, 9] + 1) % 512
    first, second = model(tokens_BL)[0], model(changed_BL)[0]

    assert torch.equal(first[:, :9], second[:, :9])
    assert not torch.allclose(first[:, 9:], second[:, 9:])


def test_rotation_makes_products_depend_on_the_distance_alone() -> None:
    """The product of a query and a key is the same wherever both are, as long as their distance is."""
    angles_LC = rotary_angles(ModelSettings(width=32, heads=2), 12, CPU)
    q_C, k_C = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    q_LC, k_LC = rotate(q_C.expand(12, 16), angles_LC), rotate(k_C.expand(12, 16), angles_LC)

    assert float(q_LC[5] @ k_LC[2]) == pytest.approx(float(q_LC[11] @ k_LC[8]), abs=1e-5)
    assert float(q_LC[5] @ k_LC[2]) != pytest.approx(float(q_LC[5] @ k_LC[4]), abs=1e-3)


@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_attention_backends_agree_with_the_definition(backend: str) -> None:
    """Softmax of scaled products over the positions before, values mixed by it; a key head serves two query heads."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 8, 16, generator=generator) for heads in (4, 2, 2))
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4).masked_fill(hidden, float("-inf"))

    assert torch.allclose(attend(q, k, v, backend), scores.softmax(-1) @ v.repeat_interleave(2, 1), atol=1e-5)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("experts", [0, 4])
def test_recomputing_gives_the_same_gradients_and_keeps_less(recompute: str, experts: int) -> None:
    """Activations computed again are the same, and fewer are kept between forward and backward pass."""
    model = ModelSettings(experts=experts)
    tokens_BL = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1))
    gradients, kept = [], []
    for choice in ("none", recompute):
        built = make_model(model, load_settings([], [f"compute.recompute={choice}"]).compute)
        with torch.autograd.graph.saved_tensors_hooks(kept_now := Kept(), lambda tensor: tensor):
            logits_BLV, balance = built(tokens_BL)
        torch.autograd.backward(functional.cross_entropy(logits_BLV.flatten(0, 1), tokens_BL.flatten()) + balance)
        gradients.append([parameter.grad for parameter in built.parameters()])
        kept.append(kept_now.numbers)

    assert all(torch.equal(left, right) for left, right in zip(*gradients, strict=True))
    assert kept[1] < kept[0]


def test_selective_recompute_repeats_no_product() -> None:
    """Whole blocks cost their products a second time; selective recompute keeps the results of products and attention."""
    tokens_BL = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1))
    flops = {}
    for choice in ("none", "selective", "full"):
        built = make_model(ModelSettings(), load_settings([], [f"compute.recompute={choice}"]).compute)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(built(tokens_BL)[0].sum())
        flops[choice] = counter.get_total_flops()

    assert flops["selective"] == flops["none"] < flops["full"]


def test_experts_are_the_weighted_sum_of_those_that_were_chosen() -> None:
    """The fast way of computing experts equals the definition, token by token."""
    settings = ModelSettings(width=16, ffn_width=8, experts=4, experts_per_token=2)
    layer = Experts(settings)
    materialise(layer, CPU, seed=3, name="x", layers=1)
    for parameter in layer.parameters():
        parameter.data.mul_(20)
    x_BLD = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    got, _ = layer(x_BLD)
    for x_D, y_D in zip(x_BLD.flatten(0, 1), got.flatten(0, 1), strict=True):
        share_E = layer.router(x_D).softmax(-1)
        weight_S, chosen_S = share_E.topk(2)
        each = [(functional.silu(x_D @ layer.gate_EDF[e]) * (x_D @ layer.up_EDF[e])) @ layer.down_EFD[e] for e in chosen_S.tolist()]

        assert torch.allclose(y_D, sum(w * y for w, y in zip(weight_S / weight_S.sum(), each, strict=True)), atol=1e-5)


def test_the_balance_loss_is_one_when_even_and_grows_when_not() -> None:
    """All tokens on one expert of four cost four times as much as an even spread."""
    even = balance_loss(torch.full((8, 4), 0.25), torch.arange(8).remainder(4).unsqueeze(1))
    uneven = balance_loss(torch.eye(4)[0].expand(8, 4), torch.zeros(8, 1, dtype=torch.long))

    assert (float(even), float(uneven)) == (1.0, 4.0)


def test_initial_weights_follow_from_seed_and_name() -> None:
    """The same seed gives the same model, another seed another one, and no two layers are alike."""
    first, again, other = (make_model(ModelSettings(), seed=seed) for seed in (1, 1, 2))

    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.output.weight, other.output.weight)
    assert not torch.equal(*(first.get_parameter(f"blocks.{index}.ffn.up.weight") for index in range(2)))
    assert float(first.embedding.weight.detach().std()) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("experts", [0, 4])
def test_the_number_of_parameters_is_that_of_the_model(experts: int) -> None:
    """What the FLOP count starts from is counted on the real model."""
    settings = ModelSettings(experts=experts)

    assert parameters(settings) == sum(parameter.numel() for parameter in make_model(settings).parameters())


def test_published_sizes_come_out() -> None:
    """Llama 3.1 8B has 8.03 billion parameters, 7.50 billion without the look-up table; 6 N + 12 L H Q T per token."""
    model = load_settings(["llama-3.1-8b"], []).model

    assert parameters(model) == 8_030_261_248
    assert active_parameters(model) == parameters(model) - 128256 * 4096
    assert flops_per_token(model, 8192) == pytest.approx(6 * 7_504_924_672 + 12 * 32 * 4096 * 8192)


def test_only_the_experts_that_see_a_token_count() -> None:
    """Two of eight experts: the arithmetic of a token grows with the experts it meets, not with those there are."""
    few, many = Settings().model, replace(Settings().model, experts=8, experts_per_token=1)

    assert active_parameters(many) == active_parameters(few) + 2 * 64 * 8
    assert parameters(many) > 2 * parameters(few)
