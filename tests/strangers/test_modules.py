"""Libraries that look into modules or change them: PEFT, captum, torchao; and models of others with fused blocks."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import pytest
import torch
from networks import assert_close, batch, is_one_op, pair
from torch import Tensor, nn

import fastops.nn


def test_peft() -> None:
    """Adapters of the layers take part, in training and merged."""
    peft = import_module("peft")
    results = []
    for module in pair(6, 16, 16, 2):
        torch.manual_seed(3)
        config = peft.LoraConfig(target_modules=["0", "2"], modules_to_save=["4"], r=4, init_lora_weights=False)
        model = peft.get_peft_model(module, config)
        y = model(batch(8, 6))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(y.square().sum(), trained)
        merged = model.merge_and_unload()
        assert_close(merged(batch(8, 6)), y, 1e-4)
        results.append([y, *gradients, merged(batch(8, 6))])
    assert_close(*results)


def test_peft_refuses_linear_act() -> None:
    """An adapter that would be merged into what comes before the activation is refused."""
    peft = import_module("peft")
    model = nn.Sequential(fastops.nn.LinearAct(6, 6), nn.Linear(6, 2))
    with pytest.raises(ValueError, match="not supported"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["0"]))


@pytest.mark.parametrize("method", ["DeepLift", "GuidedBackprop", "Deconvolution", "IntegratedGradients", "Saliency"])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Softplus()], ids=["relu", "softplus"])
def test_captum(method: str, activation: nn.Module) -> None:
    """Attributions, some of which have rules of their own for activations."""
    attr = import_module("captum.attr")
    results = []
    for module in pair(6, 16, 16, 2, activation=activation):
        x = batch(8, 6).requires_grad_()
        results.append(getattr(attr, method)(module).attribute(x, target=1).detach())
    assert_close(*results)


@pytest.mark.parametrize("kind", ["MLP", "GatedMLP", "LinearAct"])
def test_torchao(kind: str) -> None:
    """Quantized weights are multiplied as they want to be; what is no linear layer is left."""
    quantization = import_module("torchao.quantization")
    torch.manual_seed(4)
    x = batch(8, 32)
    if kind == "MLP":
        ours, theirs = pair(32, 64, 32)
    elif kind == "GatedMLP":
        ours, theirs = fastops.nn.GatedMLP(32, 64), Gated()
        theirs.load_state_dict(ours.state_dict())
    else:
        layer = fastops.nn.LinearAct(32, 32)
        ours, theirs = nn.Sequential(copy.deepcopy(layer)), nn.Sequential(layer)
    for module in (ours, theirs) if kind != "LinearAct" else (ours,):
        quantization.quantize_(module, quantization.Int8WeightOnlyConfig())
    changed = [type(layer.weight) for layer in ours.modules() if isinstance(layer, nn.Linear)]
    assert not {torch.Tensor, nn.Parameter} & set(changed)
    with torch.no_grad():
        assert_close(ours(x), theirs(x))


class Gated(nn.Module):
    """GatedMLP in terms of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down_proj = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def test_torch_geometric() -> None:
    """Message passing with networks on the nodes, which PyG resets and calls."""
    geometric = import_module("torch_geometric.nn")
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    results = []
    for module in pair(6, 16, 4):
        torch.manual_seed(9)
        convolution = geometric.GINConv(module, train_eps=True)  # which gives the network new parameters
        y = convolution(batch(5, 6), edges)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(convolution.parameters()))])
        assert not isinstance(module, fastops.nn.MLP) or is_one_op(module, batch(5, 6))
    assert_close(*results)


def converted_like_original(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Some block is fused, and the values and gradients remain."""
    results = []
    for fused in (False, True):
        if fused:
            assert fastops.nn.convert(model).replaced
        y = model(*args, **kwargs)
        y = y if isinstance(y, Tensor) else y[0]
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        results.append([y, *torch.autograd.grad(y.square().mean(), parameters, allow_unused=True)])
    used = [(a, b) for a, b in zip(*results, strict=True) if a is not None]
    assert_close([b for _, b in used], [a for a, _ in used], 1e-4)


def test_x_transformers() -> None:
    """A transformer with converted feed-forward blocks."""
    x_transformers = import_module("x_transformers")
    torch.manual_seed(5)
    model = x_transformers.TransformerWrapper(
        num_tokens=32, max_seq_len=16, attn_layers=x_transformers.Decoder(dim=32, depth=2, heads=2)
    ).eval()
    converted_like_original(model, torch.randint(32, (2, 16)))


def test_x_transformers_gated() -> None:
    """Its gated units, which ask whether there is something to clamp to, are one op with the layer behind them."""
    x_transformers = import_module("x_transformers")
    torch.manual_seed(5)
    decoder = x_transformers.Decoder(dim=32, depth=1, heads=2, ff_glu=True, ff_swish=True)
    model = x_transformers.TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=decoder).eval()
    block = next(module for module in model.modules() if type(module).__name__ == "FeedForward")
    converted_like_original(model, torch.randint(32, (2, 16)))
    assert is_one_op(block.ff, batch(8, 32))


@pytest.mark.parametrize("norm", [None, "layer_norm"])
def test_torch_geometric_mlp(norm: str | None) -> None:
    """A loop over layers and norms, with arguments that only some norms need."""
    module = import_module("torch_geometric.nn").MLP([32, 16, 16, 4], norm=norm).eval()
    converted_like_original(module, batch(8, 32)) if norm is None else fastops.nn.convert(module)
    assert (norm is not None) or is_one_op(module, batch(8, 32))
    reference = import_module("torch_geometric.nn").MLP([32, 16, 16, 4], norm=norm).eval()
    reference.load_state_dict(module.state_dict())
    assert_close(
        module(batch(8, 32), torch.zeros(8, dtype=torch.long), return_emb=True),
        reference(batch(8, 32), torch.zeros(8, dtype=torch.long), return_emb=True),
    )


@pytest.mark.parametrize("activation", ["geglu", "gelu", "gelu-approximate", "linear-silu", "swiglu"])
def test_diffusers_feed_forward(activation: str) -> None:
    """The feed-forward blocks of diffusion transformers are one op, but with the argument that is ignored."""
    attention = import_module("diffusers.models.attention")
    torch.manual_seed(6)
    block = attention.FeedForward(32, activation_fn=activation).eval()
    model = copy.deepcopy(block)
    report = fastops.nn.convert(model)
    assert report.replaced[0].module is model
    assert is_one_op(model, batch(8, 32))
    x = batch(8, 32)
    results = [
        [module(x), *torch.autograd.grad(module(x).sum(), list(module.parameters()))] for module in (model, block)
    ]
    assert_close(*results)
    with pytest.warns(FutureWarning, match="scale"):
        assert_close(model(x, scale=1.0), block(x))


def test_diffusers_time_embedding() -> None:
    """The embedding of the time step, Linear, SiLU, Linear, as an MLP in a small UNet from a configuration."""
    diffusers = import_module("diffusers")
    torch.manual_seed(7)
    unet = diffusers.UNet2DModel(
        **dict(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8)),
        **dict(norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D")),
        **dict(up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    ).eval()
    original = copy.deepcopy(unet)
    embedding = unet.time_embedding
    unet.time_embedding = fastops.nn.MLP.from_sequential(
        nn.Sequential(embedding.linear_1, embedding.act, embedding.linear_2)
    )
    assert is_one_op(unet.time_embedding, batch(2, embedding.linear_1.in_features))
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(8))
    results = []
    for model in (unet, original):
        y = model(x, 3).sample
        trained = [parameter for name, parameter in sorted(model.named_parameters()) if "time_embedding" in name]
        results.append([y, *torch.autograd.grad(y.square().mean(), trained)])
    assert_close(*results, 1e-4)
