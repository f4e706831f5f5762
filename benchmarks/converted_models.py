"""Models of timm, torchvision and transformers as they are, and after ``fastops.nn.convert``.

``python benchmarks/converted_models.py`` prints a table as ``docs/convert.md`` has it: the modules that were replaced,
and left but for attention; the largest difference of an output element in float64, relative to the largest one; and how
many times as fast the converted model is, in float32, for a forward pass without gradients and for a training step.
``--compile`` adds the training step of ``torch.compile``'s model, which takes most of the time then. It needs timm and
transformers (the dependency group ``test``).
"""

from __future__ import annotations

import argparse
import copy
import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import fastops
from compiled_models import HEADS, LAYERS, SIZES, WIDTH, images, infer, output_of, step, tokens
from fastops.bench.timing import measure, warm_up
from zoo import mlp_mixer, timm

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0}
FEW_EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "experts_implementation": "eager"}


def transformers(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """A model without a head, of a kind that ``AutoConfig`` knows."""

    def make() -> nn.Module:
        config = AutoConfig.for_model(kind, **{**SIZES, **WITHOUT_DROPOUT, "pad_token_id": 0, **options})
        model: nn.Module = AutoModel.from_config(config)
        return model

    return make


def sound() -> Tensor:
    """The spectra of two sounds."""
    return torch.randn(2, 80, 200)


class Model(NamedTuple):
    """How to make it, and its input."""

    make: Callable[[], nn.Module]
    input: Callable[[], Tensor]


CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (48, 96, 192, 384), "conv_mlp": False}
SWIN = {"window_size": 7, "depths": (2, 2), "num_heads": (3, 6), "embed_dim": 96}
ENCODER = {"encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * WIDTH, "d_model": WIDTH}
MIXER = {"num_blocks": LAYERS, "embed_dim": WIDTH, "num_classes": 10}
MODELS = {
    "timm ViT": Model(
        lambda: timm.models.VisionTransformer(embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=10), images
    ),
    "timm MLP-Mixer": Model(lambda: timm.models.MlpMixer(**MIXER), images),
    "timm ResMLP": Model(
        lambda: timm.models.MlpMixer(**MIXER, mlp_ratio=4, block_layer=mlp_mixer.ResBlock, norm_layer=mlp_mixer.Affine),
        images,
    ),
    "timm gMLP": Model(
        lambda: timm.models.MlpMixer(
            **MIXER, mlp_ratio=4, block_layer=mlp_mixer.SpatialGatingBlock, mlp_layer=timm.layers.GatedMlp
        ),
        images,
    ),
    "timm ConvNeXt": Model(lambda: timm.models.ConvNeXt(**CONVNEXT, num_classes=10), images),
    "timm Swin": Model(lambda: timm.models.SwinTransformer(**SWIN, num_classes=10), images),
    "torchvision ViT": Model(
        lambda: importlib.import_module("torchvision.models").VisionTransformer(
            224, 16, LAYERS, HEADS, WIDTH, 4 * WIDTH, num_classes=10
        ),
        images,
    ),
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
    left = [row for row in report.left if not re.search("attention", row.reason)]
    cells = [name, f"{len(report.replaced)}", f"{len(left)}", f"{difference(*models.values(), batch):.0e}"]
    for kind in (infer, step):
        peers: dict[str, Any] = dict(models)
        if compiles and kind is step:
            torch._dynamo.reset()
            peers["inductor"] = torch.compile(copy.deepcopy(model))
        for each in models.values():
            each.train(kind is step)
        works = {peer: kind(each, batch) for peer, each in peers.items()}
        warm_up(works)
        timings = measure(works, seconds=seconds, synchronize=lambda: None)
        cells += [f"{timings.ratio(peer, 'fastops').median:.2f}" for peer in peers if peer != "fastops"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description="Models as they are, and after fastops.nn.convert.")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model and kind of pass, about; default: 3")
    parser.add_argument("--compile", action="store_true", help="torch.compile's training step, too")
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all", metavar="MODEL")
    arguments = parser.parse_args()
    against = ["training", *(["training: vs torch.compile"] if arguments.compile else [])]
    columns = ["model", "replaced", "left", "difference", "inference", *against]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    for name in arguments.models or MODELS:
        print(line(name, arguments.seconds, arguments.compile), flush=True)


if __name__ == "__main__":
    main()
