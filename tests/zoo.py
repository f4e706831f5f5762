"""Blocks and models of timm and transformers, built from their configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchvision_python import import_torchvision

import_torchvision()

import timm  # noqa: E402  (after torchvision)
import timm.layers  # noqa: E402
from timm.models import mlp_mixer  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    CLIPVisionConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    T5Config,
    ViTConfig,
    WhisperConfig,
)
from transformers.models.bert import modeling_bert as bert  # noqa: E402
from transformers.models.clip import modeling_clip as clip  # noqa: E402
from transformers.models.gemma import modeling_gemma as gemma  # noqa: E402
from transformers.models.gpt2 import modeling_gpt2 as gpt2  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402
from transformers.models.mixtral import modeling_mixtral as mixtral  # noqa: E402
from transformers.models.phi3 import modeling_phi3 as phi3  # noqa: E402
from transformers.models.qwen2 import modeling_qwen2 as qwen2  # noqa: E402
from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen2_moe  # noqa: E402
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe  # noqa: E402
from transformers.models.t5 import modeling_t5 as t5  # noqa: E402
from transformers.models.vit import modeling_vit as vit  # noqa: E402
from transformers.models.whisper import modeling_whisper as whisper  # noqa: E402

# Mixtures of experts, with their configurations.
MIXTURES: list[tuple[Any, Any]] = [
    (mixtral.MixtralSparseMoeBlock, mixtral.MixtralConfig),
    (qwen2_moe.Qwen2MoeSparseMoeBlock, qwen2_moe.Qwen2MoeConfig),
    (qwen3_moe.Qwen3MoeSparseMoeBlock, qwen3_moe.Qwen3MoeConfig),
]

SMALL: dict[str, Any] = {
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 19,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 8,
    "patch_size": 4,
}
LETTERS: dict[str, Any] = {key: SMALL[key] for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
GPT2 = GPT2Config(n_embd=12, n_inner=20, n_layer=2, n_head=2, n_positions=16, **LETTERS)


def t5_config(feed_forward_proj: str) -> T5Config:
    """A small T5."""
    kind = {"feed_forward_proj": feed_forward_proj, "decoder_start_token_id": 0}
    return T5Config(d_model=12, d_kv=6, d_ff=20, num_layers=2, num_heads=2, **LETTERS, **kind)


WHISPER = WhisperConfig(
    **LETTERS,
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 20 for part in ("encoder", "decoder")},
    **{"d_model": 12, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 16},
)
PATCHES: dict[str, Any] = {"img_size": 8, "patch_size": 4, "num_blocks": 2, "embed_dim": 12, "num_classes": 5}


# One block of each kind; its name is how one imports its class.
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "timm.layers.Mlp": lambda: timm.layers.Mlp(12, 20),
    "timm.layers.GluMlp": lambda: timm.layers.GluMlp(12, 20),
    "timm.layers.SwiGLU": lambda: timm.layers.SwiGLU(12, 20),
    "timm.layers.GatedMlp": lambda: timm.layers.GatedMlp(12, 20),
    "transformers.models.bert.modeling_bert.BertIntermediate": lambda: bert.BertIntermediate(BertConfig(**SMALL)),
    "transformers.models.bert.modeling_bert.BertPredictionHeadTransform": lambda: bert.BertPredictionHeadTransform(
        BertConfig(**SMALL)
    ),
    "transformers.models.clip.modeling_clip.CLIPMLP": lambda: clip.CLIPMLP(CLIPVisionConfig(**SMALL)),
    "transformers.models.gemma.modeling_gemma.GemmaMLP": lambda: gemma.GemmaMLP(GemmaConfig(**SMALL)),
    "transformers.models.gpt2.modeling_gpt2.GPT2MLP": lambda: gpt2.GPT2MLP(20, GPT2),
    "transformers.models.llama.modeling_llama.LlamaMLP": lambda: llama.LlamaMLP(LlamaConfig(**SMALL)),
    "transformers.models.phi3.modeling_phi3.Phi3MLP": lambda: phi3.Phi3MLP(Phi3Config(**SMALL)),
    "transformers.models.qwen2.modeling_qwen2.Qwen2MLP": lambda: qwen2.Qwen2MLP(Qwen2Config(**SMALL)),
    "transformers.models.t5.modeling_t5.T5DenseActDense": lambda: t5.T5DenseActDense(t5_config("relu")),
    "transformers.models.t5.modeling_t5.T5DenseGatedActDense": lambda: t5.T5DenseGatedActDense(t5_config("gated-gelu")),
    "transformers.models.vit.modeling_vit.ViTMLP": lambda: vit.ViTMLP(ViTConfig(**SMALL)),
}
if not hasattr(vit, "ViTMLP"):  # transformers 4
    del BLOCKS["transformers.models.vit.modeling_vit.ViTMLP"]


def tokens() -> Tensor:
    """Two sentences."""
    return torch.randint(3, 19, (2, 7), generator=torch.Generator().manual_seed(5))


def spectrum() -> Tensor:
    """Two sounds."""
    return torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def image(size: int, channels: int = 3) -> Tensor:
    """Two images."""
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def vision_transformer(**options: Any) -> nn.Module:
    """A small ViT of timm."""
    return timm.models.VisionTransformer(img_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=2, **options)


# A model, what to call it with, and how many of its blocks are converted and how many left, without its attention.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], int, int]] = {
    "timm ViT": (lambda: vision_transformer(proj_drop_rate=0.2), lambda: image(8), 2, 0),
    "timm ViT, SwiGLU": (lambda: vision_transformer(mlp_layer=timm.layers.SwiGLU), lambda: image(8), 2, 0),
    "timm EVA, SwiGLU": (
        lambda: timm.models.Eva(
            img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, qkv_fused=False, swiglu_mlp=True
        ),
        lambda: image(8),
        2,
        0,
    ),
    "timm Swin": (
        lambda: timm.models.SwinTransformer(
            img_size=16, patch_size=2, window_size=4, embed_dim=8, depths=(1, 1), num_heads=(2, 2), num_classes=5
        ),
        lambda: image(16),
        2,
        0,
    ),
    "timm MLP-Mixer": (
        lambda: timm.models.MlpMixer(**PATCHES),
        lambda: image(8),
        4,
        0,
    ),
    "timm ResMLP": (
        lambda: timm.models.MlpMixer(
            **PATCHES, mlp_ratio=4, block_layer=mlp_mixer.ResBlock, norm_layer=mlp_mixer.Affine
        ),
        lambda: image(8),
        2,
        0,
    ),
    "timm gMLP": (
        lambda: timm.models.MlpMixer(
            **PATCHES, mlp_ratio=4, block_layer=mlp_mixer.SpatialGatingBlock, mlp_layer=timm.layers.GatedMlp
        ),
        lambda: image(8),
        2,
        0,
    ),
    "Whisper encoder": (lambda: whisper.WhisperEncoder(WHISPER), spectrum, 2, 0),
    "Whisper decoder": (lambda: whisper.WhisperDecoder(WHISPER), tokens, 2, 0),
    "BERT": (lambda: bert.BertForMaskedLM(BertConfig(**SMALL)), tokens, 4, 0),
    "BERT with pooler": (lambda: bert.BertModel(BertConfig(**SMALL)), tokens, 2, 1),
    "GPT-2": (lambda: gpt2.GPT2LMHeadModel(GPT2), tokens, 2, 0),
    "LLaMA": (lambda: llama.LlamaForCausalLM(LlamaConfig(**SMALL)), tokens, 2, 0),
    "Gemma": (lambda: gemma.GemmaForCausalLM(GemmaConfig(head_dim=6, **SMALL)), tokens, 2, 0),
    "Phi-3": (lambda: phi3.Phi3ForCausalLM(Phi3Config(**SMALL)), tokens, 2, 0),
    "Qwen2": (lambda: qwen2.Qwen2ForCausalLM(Qwen2Config(**SMALL)), tokens, 2, 0),
    "CLIP": (lambda: clip.CLIPVisionModel(CLIPVisionConfig(**SMALL)), lambda: image(8), 2, 0),
    "ViT": (lambda: vit.ViTForImageClassification(ViTConfig(**SMALL)), lambda: image(8), 2, 0),
    "T5": (lambda: t5.T5EncoderModel(t5_config("relu")), tokens, 2, 0),
    "T5, gated": (lambda: t5.T5EncoderModel(t5_config("gated-gelu")), tokens, 2, 0),
}
