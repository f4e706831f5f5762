"""Libraries that train a network: skorch, Lightning, accelerate, opacus, stable-baselines3."""

from __future__ import annotations

import copy
import warnings
from importlib import import_module
from typing import Any

import torch
from networks import assert_close, assert_same_parameters, batch, is_one_op, pair
from torch import Tensor, nn

import fastops.nn


def test_skorch() -> None:
    """Some epochs of skorch's classifier."""
    skorch = import_module("skorch")
    x, y = batch(64, 6).numpy(), (batch(64, 1)[:, 0] > 0).long().numpy()
    results = []
    for module in pair(6, 16, 2):
        torch.manual_seed(2)
        classifier = skorch.NeuralNetClassifier(
            module, criterion=nn.CrossEntropyLoss, max_epochs=3, lr=0.1, verbose=0, train_split=None
        )
        classifier.fit(x, y)
        results.append((torch.from_numpy(classifier.predict_proba(x)), classifier.module_))
    assert_close(results[0][0], results[1][0])
    assert_same_parameters(results[0][1], results[1][1])
    assert is_one_op(results[0][1], torch.from_numpy(x))


def test_lightning() -> None:
    """Some epochs of Lightning's trainer."""
    lightning = import_module("lightning")

    class Regression(lightning.LightningModule):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def training_step(self, rows: Any, index: int) -> Tensor:
            x, y = rows
            return (self.network(x) - y).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch(64, 6), batch(64, 2)), batch_size=16)
    modules = [Regression(module) for module in pair(6, 16, 2)]
    for module in modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lightning.Trainer(
                **dict(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False),
                **dict(enable_progress_bar=False, enable_model_summary=False),
            ).fit(module, data)
    assert_same_parameters(*modules)
    assert is_one_op(modules[0].network, batch(8, 6))


def test_accelerate() -> None:
    """A loop with accelerate."""
    accelerate = import_module("accelerate")
    trained = []
    for module in pair(6, 16, 2):
        accelerator = accelerate.Accelerator(cpu=True)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        module, optimizer = accelerator.prepare(module, optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            accelerator.backward((module(batch(16, 6)) - batch(16, 2)).square().mean())
            optimizer.step()
        trained.append(accelerator.unwrap_model(module))
    assert_same_parameters(*trained)


def test_opacus() -> None:
    """The gradient of each sample, which opacus takes from hooks of the layers."""
    opacus = import_module("opacus")
    results = []
    for module in pair(6, 16, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watched = opacus.GradSampleModule(module)
            (watched(batch(16, 6)) - batch(16, 2)).square().sum().backward()
        results.append([parameter.grad_sample for parameter in module.parameters()])
        assert all(len(gradients) == 16 for gradients in results[-1])
    assert_close(*results)


def test_stable_baselines3() -> None:
    """PPO with converted networks takes the same steps."""
    stable_baselines3 = import_module("stable_baselines3")
    policies = []
    for converted in (True, False):
        model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, seed=0, device="cpu")
        if converted:
            assert fastops.nn.convert(model.policy).replaced
        model.learn(256)
        policies.append(model.policy)
    assert_same_parameters(*policies, tolerance=1e-4)
    observation = batch(5, 4)
    with torch.no_grad():
        assert_close(*(policy.get_distribution(observation).distribution.logits for policy in policies), 1e-4)


def test_torchdiffeq() -> None:
    """The adjoint method through a network."""
    torchdiffeq = import_module("torchdiffeq")

    class Field(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, time: Tensor, state: Tensor) -> Tensor:
            return self.network(state)

    results = []
    for module in pair(4, 16, 4, activation=nn.Tanh()):
        field = Field(copy.deepcopy(module).double())
        states = torchdiffeq.odeint_adjoint(field, batch(3, 4).double(), torch.linspace(0, 1, 5).double())
        results.append([states, *torch.autograd.grad(states.square().sum(), list(field.parameters()))])
    assert_close(*results)
