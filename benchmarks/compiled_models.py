"""Networks under ``torch.compile``, by Inductor alone and with ``backend="fastops"``, and eagerly.

``python benchmarks/compiled_models.py`` prints a table as ``docs/compile.md`` has it: for a forward pass without
gradients, and for a forward and backward pass. Before anything is timed, both compiled models train for 50 steps from
the same weights on the same batch; the largest relative difference of their losses is the table's last column. It needs
timm and transformers (the dependency group ``test``). Most of its time goes to Inductor.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastops.bench.models import sequential
from fastops.bench.timing import measure, warm_up
from models import HEADS, LAYERS, SIZES, WIDTH, features, images, infer, output_of, step, tokens
from zoo import BertConfig, GPT2Config, LlamaConfig, bert, gpt2, llama, timm

Make = Callable[[], nn.Module]


def gpt2_model() -> nn.Module:
    """Two blocks of GPT-2."""
    rest = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1}
    return gpt2.GPT2LMHeadModel(GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=1000, **rest))


MODELS: dict[str, tuple[Make, Callable[[], Tensor]]] = {
    "MLP 17-64-64-6, tanh, 64 rows": (lambda: sequential([17, 64, 64, 6], nn.Tanh()), features(64, 17)),
    "MLP 784-256-256-256-10, softshrink, 64 rows": (
        lambda: sequential([784, 256, 256, 256, 10], nn.Softshrink()),
        features(64, 784),
    ),
    "MLP 784-256-256-256-10, softshrink, 4,096 rows": (
        lambda: sequential([784, 256, 256, 256, 10], nn.Softshrink()),
        features(4096, 784),
    ),
    "MLP 768-3072-768, GELU, 512 rows": (lambda: sequential([768, 3072, 768], nn.GELU()), features(512, 768)),
    "timm ViT": (
        lambda: timm.models.VisionTransformer(embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=10),
        images,
    ),
    "timm MLP-Mixer": (
        lambda: timm.models.MlpMixer(num_blocks=LAYERS, embed_dim=WIDTH, num_classes=10),
        images,
    ),
    "BERT": (
        lambda: bert.BertForMaskedLM(BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
        tokens,
    ),
    "GPT-2": (gpt2_model, tokens),
    "LLaMA": (lambda: llama.LlamaForCausalLM(LlamaConfig(**SIZES)), tokens),
}


def train(model: nn.Module, call: Callable[..., Any], batch: Tensor, steps: int = 50) -> list[float]:
    """The losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (output_of(call(batch)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def row(name: str, make: Make, batch_of: Callable[[], Tensor], seconds: float) -> str:
    """The model's line of the table."""
    torch.manual_seed(0)
    model, batch = make().train(), batch_of()
    models = {backend: copy.deepcopy(model) for backend in ("eager", "inductor", "fastops")}
    torch._dynamo.reset()
    calls = {backend: torch.compile(each, backend=backend) for backend, each in models.items() if backend != "eager"}
    calls["eager"] = models["eager"]
    losses = {backend: train(models[backend], calls[backend], batch) for backend in ("inductor", "fastops")}
    pairs = zip(losses["inductor"], losses["fastops"], strict=True)
    difference = max(abs(a - b) / abs(a) for a, b in pairs)
    cells = [name]
    for kind in (infer, step):
        for each in models.values():
            each.train(kind is step)
        functions = {backend: kind(call, batch) for backend, call in calls.items()}
        warm_up(functions)
        timings = measure(functions, seconds=seconds, synchronize=lambda: None)
        time = timings.spread("fastops").median
        cells += [f"{time * 1e3:.3g} ms"]
        cells += [f"{timings.ratio(other, 'fastops').median:.2f}" for other in ("eager", "inductor")]
    return f"| {' | '.join(cells)} | {difference:.0e} |"


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="those whose names contain one of these; by default all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=6.0, help="for each measurement (default: 6)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| network | inference | vs eager | vs Inductor | training | vs eager | vs Inductor | losses |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, (make, batch) in MODELS.items():
        if not args.models or any(part in name for part in args.models):
            print(row(name, make, batch, args.seconds), flush=True)


if __name__ == "__main__":
    main()
