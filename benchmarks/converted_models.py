"""Models of other libraries as they are, and after ``fastops.nn.convert``.

``python benchmarks/converted_models.py`` prints a table as ``docs/convert.md`` has it: the modules that were replaced,
and left but for attention; the largest difference of an output element in float64, relative to the largest one; and how
many times as fast the converted model is, in float32, for a forward pass without gradients and for a training step.
``--compile`` adds the training step of ``torch.compile``'s model, which takes most of the time then.

Models whose library is not installed are left out. Those of timm, torchvision and transformers are in ``.venv``
(``make test``), those of rtdl, stable-baselines3, PyTorch Geometric, x-transformers and diffusers in
``.venv-strangers`` (``make strangers``).
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fastops
from fastops.bench.timing import measure, warm_up
from models import HEADS, LAYERS, SIZES, WIDTH, features, images, infer, output_of, step, tokens

Make = Callable[[], nn.Module]
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0}
FEW_EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "experts_implementation": "eager"}


class Model(NamedTuple):
    """How to make it, which imports its library, and its input."""

    make: Make
    input: Callable[[], Tensor]


def transformers(kind: str, **options: Any) -> Make:
    """A model without a head, of a kind that ``AutoConfig`` knows."""

    def make() -> nn.Module:
        library = import_module("transformers")
        config = library.AutoConfig.for_model(kind, **{**SIZES, **WITHOUT_DROPOUT, "pad_token_id": 0, **options})
        model: nn.Module = library.AutoModel.from_config(config)
        return model

    return make


def timm(kind: str, **options: Any) -> Make:
    """A model for images."""
    return lambda: getattr(import_module("timm.models"), kind)(num_classes=10, **options)


def timm_mixer(block: str, **options: Any) -> Make:
    """A mixer of other blocks than its own."""

    def make() -> nn.Module:
        mixer = import_module("timm.models.mlp_mixer")
        kinds = {name: getattr(mixer, kind) for name, kind in options.items()}
        return timm("MlpMixer", **MIXER, mlp_ratio=4, block_layer=getattr(mixer, block), **kinds)()

    return make


def torchvision(module: str, kind: str, *arguments: Any, **options: Any) -> Make:
    """A model of one of its modules."""
    return lambda: getattr(import_module(f"torchvision.{module}"), kind)(*arguments, **options)


def rtdl(kind: str, **options: Any) -> Make:
    """A model for tables."""
    sizes = {"d_out": 1, "n_blocks": LAYERS}
    return lambda: getattr(import_module("rtdl_revisiting_models"), kind)(**sizes, **options)


def policy(module: str, kind: str, part: str) -> Make:
    """A part of what an agent of stable-baselines3 learns."""

    def make() -> nn.Module:
        policies, box = import_module(f"stable_baselines3.{module}.policies"), import_module("gymnasium.spaces").Box
        whole = getattr(policies, kind)(box(-1, 1, (17,)), box(-1, 1, (6,)), lambda progress: 1e-3, net_arch=[256, 256])
        model: nn.Module = getattr(whole, part)
        return model

    return make


def geometric(**options: Any) -> Make:
    """An MLP of PyTorch Geometric."""
    return lambda: import_module("torch_geometric.nn").MLP([32, WIDTH, WIDTH, WIDTH, 1], **options)


def x_transformers(kind: str, **options: Any) -> Make:
    """A model of texts."""

    def make() -> nn.Module:
        library = import_module("x_transformers")
        layers = getattr(library, kind)(dim=WIDTH, depth=LAYERS, heads=HEADS, **options)
        model: nn.Module = library.TransformerWrapper(num_tokens=1000, max_seq_len=64, attn_layers=layers)
        return model

    return make


def diffusers(activation: str) -> Make:
    """Blocks with self-attention."""

    def make() -> nn.Module:
        block = import_module("diffusers.models.attention").BasicTransformerBlock
        return nn.Sequential(*[block(WIDTH, HEADS, WIDTH // HEADS, activation_fn=activation) for _ in range(LAYERS)])

    return make


def sound() -> Tensor:
    """The spectra of two sounds."""
    return torch.randn(2, 80, 200)


def embedded() -> Tensor:
    """Four texts of 64 tokens, as vectors."""
    return torch.randn(4, 64, WIDTH)


def embedded_features() -> Tensor:
    """256 rows of 32 features, and a token for the result, as vectors."""
    return torch.randn(256, 33, 192)


CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (48, 96, 192, 384), "conv_mlp": False}
SWIN = {"window_size": 7, "depths": (2, 2), "num_heads": (3, 6), "embed_dim": 96}
ENCODER = {"encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * WIDTH, "d_model": WIDTH}
MIXER = {"num_blocks": LAYERS, "embed_dim": WIDTH}
RTDL_RESNET = {"d_hidden": None, "d_hidden_multiplier": 2.0, "dropout1": 0.0, "dropout2": 0.0}
RTDL_FT = {"attention_n_heads": 8, "attention_dropout": 0.0, "ffn_d_hidden": None, "ffn_d_hidden_multiplier": 4 / 3}
RTDL_FT |= {"ffn_dropout": 0.0, "residual_dropout": 0.0, "n_cont_features": 32, "cat_cardinalities": []}
table, observations = features(256, 32), features(256, 17)
MODELS = {
    "timm ViT": Model(timm("VisionTransformer", embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS), images),
    "timm MLP-Mixer": Model(timm("MlpMixer", **MIXER), images),
    "timm ResMLP": Model(timm_mixer("ResBlock", norm_layer="Affine"), images),
    "timm gMLP": Model(timm_mixer("SpatialGatingBlock", mlp_layer="GatedMlp"), images),
    "timm ConvNeXt": Model(timm("ConvNeXt", **CONVNEXT), images),
    "timm Swin": Model(timm("SwinTransformer", **SWIN), images),
    "torchvision ViT": Model(
        torchvision("models", "VisionTransformer", 224, 16, LAYERS, HEADS, WIDTH, 4 * WIDTH, num_classes=10), images
    ),
    "torchvision MLP": Model(torchvision("ops", "MLP", 32, [WIDTH, WIDTH, 10]), table),
    "BERT": Model(transformers("bert"), tokens),
    "RoBERTa": Model(transformers("roberta"), tokens),
    "GPT-2": Model(transformers("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), tokens),
    "LLaMA": Model(transformers("llama"), tokens),
    "Mistral": Model(transformers("mistral"), tokens),
    "Qwen3": Model(transformers("qwen3"), tokens),
    "Gemma 2": Model(transformers("gemma2"), tokens),
    "Phi-3": Model(transformers("phi3"), tokens),
    "Mixtral, experts one by one": Model(transformers("mixtral", **FEW_EXPERTS), tokens),
    "Qwen3-MoE, experts one by one": Model(transformers("qwen3_moe", **FEW_EXPERTS), tokens),
    "T5, encoder": Model(lambda: transformers("t5", d_model=WIDTH, d_ff=4 * WIDTH)().encoder, tokens),
    "transformers ViT": Model(transformers("vit"), images),
    "CLIP, images": Model(transformers("clip_vision_model", image_size=224, patch_size=16), images),
    "Whisper, encoder": Model(
        lambda: transformers("whisper", **ENCODER, max_source_positions=100, dropout=0.0)().encoder, sound
    ),
    "Mamba": Model(transformers("mamba"), tokens),
    "rtdl MLP": Model(rtdl("MLP", d_in=32, d_block=WIDTH, dropout=0.0), table),
    "rtdl ResNet": Model(rtdl("ResNet", d_in=32, d_block=WIDTH, **RTDL_RESNET), table),
    "rtdl FT-Transformer, backbone": Model(
        lambda: rtdl("FTTransformer", d_block=192, **RTDL_FT)().backbone, embedded_features
    ),
    "stable-baselines3 PPO, both networks": Model(policy("common", "ActorCriticPolicy", "mlp_extractor"), observations),
    "stable-baselines3 TD3, actor": Model(lambda: policy("td3", "TD3Policy", "actor")().mu, observations),
    "PyTorch Geometric MLP": Model(geometric(), table),
    "PyTorch Geometric MLP, no norm": Model(geometric(norm=None), table),
    "x-transformers Encoder": Model(x_transformers("Encoder"), tokens),
    "x-transformers Decoder, SwiGLU": Model(x_transformers("Decoder", ff_glu=True, ff_swish=True), tokens),
    "diffusers, GELU": Model(diffusers("gelu-approximate"), embedded),
    "diffusers, GEGLU": Model(diffusers("geglu"), embedded),
}


def difference(model: nn.Module, converted: nn.Module, batch: Tensor) -> float:
    """Of an output element, in float64."""
    inputs = batch.double() if batch.is_floating_point() else batch
    with torch.no_grad():
        expected, found = (output_of(copy.deepcopy(each).double()(inputs)) for each in (model, converted))
    return float((found - expected).abs().max() / expected.abs().max())


def line(name: str, seconds: float, compiles: bool) -> str:
    """The model's line of the table."""
    torch.manual_seed(0)
    model, batch = MODELS[name].make().eval(), MODELS[name].input()
    for parameter in model.parameters():
        if not parameter.any():  # a head of zeros would hide all differences
            nn.init.normal_(parameter, std=0.02)
    models = {"eager": model, "fastops": copy.deepcopy(model)}
    report = fastops.nn.convert(models["fastops"])
    texts = [f"{type(row.module).__name__}: {row.reason}" for row in report.left]
    left = [text for text in texts if not re.search("attention", text, re.IGNORECASE)]
    cells = [name, f"{len(report.replaced)}", f"{len(left)}", f"{difference(*models.values(), batch):.0e}"]
    for kind in (infer, step):
        for each in models.values():
            each.train(kind is step)
        peers: dict[str, Any] = dict(models)
        if compiles and kind is step:
            torch._dynamo.reset()
            peers["inductor"] = torch.compile(copy.deepcopy(model))
        works = {peer: kind(each, batch) for peer, each in peers.items()}
        warm_up(works)
        timings = measure(works, seconds=seconds, synchronize=lambda: None)
        cells += [f"{timings.ratio(peer, 'fastops').median:.2f}" for peer in peers if peer != "fastops"]
    return "| " + " | ".join(cells) + " |"


def show(name: str, seconds: float, compiles: bool) -> None:
    """Prints the model's line, or that it is left out."""
    try:
        print(line(name, seconds, compiles), flush=True)
    except ModuleNotFoundError as error:
        if not error.name:  # of another error within transformers
            raise
        print(f"{name}: left out, {error.name} is not installed (see --help)", file=sys.stderr)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model and kind of pass, about; default: 3")
    parser.add_argument("--compile", action="store_true", help="torch.compile's training step, too")
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all", metavar="MODEL")
    arguments = parser.parse_args()
    against = ["training", *(["training: vs torch.compile"] if arguments.compile else [])]
    columns = ["model", "replaced", "left", "difference", "inference", *against]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    for name in arguments.models or MODELS:
        show(name, arguments.seconds, arguments.compile)


if __name__ == "__main__":
    main()
