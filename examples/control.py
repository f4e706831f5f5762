"""Trains an agent to swing up a pendulum and hold it: soft actor-critic, with fastops and with plain PyTorch.

Run it with ``python examples/control.py --out demo``; it takes a few minutes. The environment is Pendulum-v1 of
gymnasium. The agent is SAC (Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2019) with the critics of
DroQ (Hiraoka et al., Dropout Q-Functions for Doubly Efficient Reinforcement Learning, 2022), whose hidden layers have
LayerNorm and dropout: ``fastops.nn.MLP(..., norm="layer", dropout=0.01)``, each one op forward and one backward. (There
dropout stands behind the activation, in DroQ before the norm.) The policy is an MLP that gives mean and deviation of a
Gaussian, squashed by tanh.

Both sides begin with the same weights, act in environments of the same seeds and draw the same random numbers, but for
dropout, where each draws its own: their curves agree as those of two seeds do. With ``--dropout 0`` both do the same
until rounding has grown, as it does in a pendulum, and the program fails if the losses of the first updates differ. It
fails with dropout, too, if the gradients of the sides differ where nothing is dropped. Expect returns of about -150
from both sides, where an agent that does nothing has -1200, and in the --out folder control.png.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from common import (
    FASTOPS,
    PYTORCH,
    Row,
    announce,
    arguments,
    check_beginning,
    comparison,
    console,
    fail_if,
    folder,
    positive,
    probability,
    relative_difference,
    turns,
    weights_of,
)
from plots import LINES, curves_beside_times
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fastops
from fastops.bench.memory import bytes_kept_for_backward

ENVIRONMENT = "Pendulum-v1"
WIDTH = 128
BATCH_SIZE = 128
DISCOUNT = 0.99
LEARNING_RATE = 1e-3
TARGET_DECAY = 0.995
ROUND = 50  # steps of the environment after which it is the other side's turn
EVALUATION_EVERY, EVALUATION_EPISODES = 500, 10

# Of all gradients of a batch together, in float32.
TOLERANCE = 1e-5
# The losses of this many first updates are compared without dropout. Adam divides by what the gradients were, which are
# near zero for some weights: there it takes whole steps in a direction that rounding decides.
COMPARED_UPDATES = 100
TOLERANCE_PER_UPDATE = 1e-5


class Batch(NamedTuple):
    """Transitions: observations [n, o], actions [n, a] between -1 and 1, rewards and terminations [n]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_observation: Tensor


class Memory:
    """All transitions so far."""

    def __init__(self, capacity: int, observation_size: int, action_size: int) -> None:
        sizes = (capacity, observation_size), (capacity, action_size), (capacity,), (capacity,)
        self.stored = Batch(*(torch.zeros(size) for size in (*sizes, sizes[0])))
        self.size = 0

    def append(self, *transition: object) -> None:
        for tensor, value in zip(self.stored, transition, strict=True):
            tensor[self.size] = torch.as_tensor(value)
        self.size += 1

    def sample(self, random: torch.Generator) -> Batch:
        rows = torch.randint(self.size, (BATCH_SIZE,), generator=random)
        return Batch(*(tensor[rows] for tensor in self.stored))


def plain_network(inputs: int, outputs: int, between: Callable[[], Sequence[nn.Module]]) -> nn.Sequential:
    """Two hidden layers in PyTorch, with the modules that ``between`` makes behind each."""
    hidden = [module for size in (inputs, WIDTH) for module in (nn.Linear(size, WIDTH), *between())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


class Agent(nn.Module):
    """The networks of one side: a policy and two critics."""

    def __init__(self, policy: nn.Module, critics: Iterable[nn.Module]) -> None:
        super().__init__()
        self.policy = policy
        self.critics = nn.ModuleList(critics)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions between -1 and 1, and the logarithms of their densities [n]."""
        mean, log_deviation = self.policy(observation).chunk(2, -1)
        log_deviation = log_deviation.clamp(-5, 2)
        action = mean + log_deviation.exp() * noise
        log_density = -(0.5 * noise.square() + log_deviation + 0.5 * math.log(2 * math.pi))
        log_tanh_slope = 2 * (math.log(2) - action - F.softplus(-2 * action))
        return action.tanh(), (log_density - log_tanh_slope).sum(-1)

    def values(self, critics: Iterable[nn.Module], observation: Tensor, action: Tensor) -> Tensor:
        """What each critic expects [2, n]."""
        both = torch.cat([observation, action], -1)
        return torch.stack([critic(both).squeeze(-1) for critic in critics])


def make_agents(observation_size: int, action_size: int, dropout: float, seed: int) -> dict[str, Agent]:
    """Both sides with the same weights: the modules and their names are the same."""
    torch.manual_seed(seed)
    inputs = observation_size + action_size

    def between() -> list[nn.Module]:
        return [nn.LayerNorm(WIDTH), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]

    plain = Agent(
        plain_network(observation_size, 2 * action_size, lambda: [nn.ReLU()]),
        [plain_network(inputs, 1, between) for _ in range(2)],
    )
    hidden = [WIDTH, WIDTH]
    ours = Agent(
        fastops.nn.MLP(observation_size, hidden, 2 * action_size, activation="relu"),
        [fastops.nn.MLP(inputs, hidden, 1, activation="relu", norm="layer", dropout=dropout) for _ in range(2)],
    )
    ours.load_state_dict(plain.state_dict())
    return {FASTOPS: ours, PYTORCH: plain}


class Training:
    """One side's agent, what it has seen, and what was measured."""

    def __init__(self, agent: Agent, environment: str, steps: int, random_steps: int, seed: int) -> None:
        self.agent = agent
        # With dropout in training, as in DroQ.
        self.targets = AveragedModel(agent.critics, multi_avg_fn=get_ema_multi_avg_fn(TARGET_DECAY))
        self.targets.update_parameters(agent.critics)
        groups = agent.critics.parameters(), agent.policy.parameters(), [agent.log_temperature]
        self.critics_adam, self.policy_adam, self.temperature_adam = (
            torch.optim.Adam(group, lr=LEARNING_RATE, fused=True) for group in groups
        )
        self.environment, self.seed = gymnasium.make(environment), seed
        observations, actions = self.environment.observation_space, self.environment.action_space
        assert isinstance(actions, gymnasium.spaces.Box) and observations.shape
        self.lowest, self.highest = actions.low, actions.high
        self.memory = Memory(steps, observations.shape[0], actions.shape[0])
        self.random_steps = random_steps
        self.random = torch.Generator().manual_seed(seed)
        self.observation, _ = self.environment.reset(seed=seed)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.evaluations: list[list[float]] = []

    def explore(self) -> None:
        """One step in the environment, and, once there is something to learn from, one update."""
        noise = torch.randn(self.memory.stored.action.shape[1], generator=self.random)
        if self.memory.size < self.random_steps:
            action = noise.clamp(-1, 1)
        else:
            with torch.no_grad():
                action, _ = self.agent.act(torch.from_numpy(self.observation), noise)
        before = self.observation
        self.observation, reward, terminated, truncated, _ = self.environment.step(self.scaled(action))
        self.memory.append(before, action, reward, terminated, self.observation)
        if terminated or truncated:
            self.observation, _ = self.environment.reset()
        if self.memory.size >= self.random_steps:
            start = time.perf_counter()
            self.losses.append(self.update(self.memory.sample(self.random)))
            self.seconds.append(time.perf_counter() - start)

    def scaled(self, action: Tensor) -> np.ndarray:
        """An action as the environment takes it."""
        scaled: np.ndarray = self.lowest + 0.5 * (action.numpy() + 1) * (self.highest - self.lowest)
        return scaled

    def critics_loss(self, batch: Batch, noise: Tensor) -> Tensor:
        """The squared errors of the critics against what the targets expect of the next observation."""
        with torch.no_grad():
            action, log_density = self.agent.act(batch.next_observation, noise)
            expected = self.agent.values(self.targets.module, batch.next_observation, action).amin(0)
            expected -= self.agent.log_temperature.exp() * log_density
            target = batch.reward + DISCOUNT * (1 - batch.terminated) * expected
        values = self.agent.values(self.agent.critics, batch.observation, batch.action)
        return (values - target).square().mean(1).sum()

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy lowers, and the mean logarithm of its densities."""
        action, log_density = self.agent.act(batch.observation, noise)
        value = self.agent.values(self.agent.critics, batch.observation, action).amin(0)
        temperature = self.agent.log_temperature.detach().exp()
        return (temperature * log_density - value).mean(), log_density.detach().mean()

    def update(self, batch: Batch) -> float:
        """A step of the critics, of the policy and of the temperature; gives the critics' loss."""
        noise, next_noise = torch.randn(2, *batch.action.shape, generator=self.random)
        critics_loss = self.critics_loss(batch, next_noise)
        self.critics_adam.zero_grad()
        critics_loss.backward()
        self.critics_adam.step()
        self.agent.critics.requires_grad_(False)
        policy_loss, log_density = self.policy_loss(batch, noise)
        self.agent.critics.requires_grad_(True)
        self.policy_adam.zero_grad()
        policy_loss.backward()
        self.policy_adam.step()
        # The temperature rises where the policy has less entropy than one nat below that of uniform actions.
        self.temperature_adam.zero_grad()
        (-self.agent.log_temperature * (log_density - batch.action.shape[1])).backward()
        self.temperature_adam.step()
        self.targets.update_parameters(self.agent.critics)
        return critics_loss.item()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Appends the returns of episodes with the policy's means, which begin in the same states every time."""
        environments = gymnasium.make_vec(self.environment.spec, EVALUATION_EPISODES, vectorization_mode="sync")
        observations, _ = environments.reset(seed=self.seed + 1)
        returns, running = np.zeros(EVALUATION_EPISODES), np.ones(EVALUATION_EPISODES, bool)
        while running.any():
            inputs = torch.as_tensor(observations, dtype=torch.float32)
            actions, _ = self.agent.act(inputs, torch.zeros(()))
            observations, rewards, terminated, truncated, _ = environments.step(self.scaled(actions))
            returns += rewards * running
            running &= ~(terminated | truncated)
        environments.close()
        self.evaluations.append(returns.tolist())

    def mean_returns(self) -> list[float]:
        return [statistics.fmean(returns) for returns in self.evaluations]

    def gradients(self, batch: Batch) -> list[Tensor]:
        """Those of a batch, of critics and policy, without dropout."""
        for module in (self.agent, self.targets):
            module.eval()
        noise = torch.linspace(-1, 1, batch.action.numel()).view_as(batch.action)
        losses = self.critics_loss(batch, noise), self.policy_loss(batch, noise)[0]
        networks = self.agent.critics, self.agent.policy
        pairs = zip(losses, networks, strict=True)
        gradients = [torch.autograd.grad(loss, list(network.parameters())) for loss, network in pairs]
        for module in (self.agent, self.targets):
            module.train()
        return [gradient for group in gradients for gradient in group]

    def bytes_kept(self) -> int:
        """What the critics keep of a batch for their backward pass."""
        batch = Batch(*(tensor[:BATCH_SIZE] for tensor in self.memory.stored))
        given = [torch.cat([batch.observation, batch.action], -1), *self.agent.critics.parameters()]
        return bytes_kept_for_backward(lambda: [critic(given[0]) for critic in self.agent.critics], given)


def check(trainings: dict[str, Training], out: Console) -> list[str]:
    """Compares the gradients of both agents with the weights of fastops's; gives what rounding cannot be."""
    ours, plain = trainings[FASTOPS], trainings[PYTORCH]
    batch = ours.memory.sample(torch.Generator().manual_seed(0))
    with weights_of(ours.agent, plain.agent), weights_of(ours.targets, plain.targets):
        difference = relative_difference(ours.gradients(batch), plain.gradients(batch))
    out.print(f"Gradients after training: the sides differ by {difference:.1e}")
    return [] if difference <= TOLERANCE else [f"the gradients after training differ by {difference:.1e}"]


def rows(trainings: dict[str, Training]) -> list[Row]:
    return [
        Row.of(
            "mean return at the end", trainings, lambda one: [statistics.fmean(one.evaluations[-1])], "{:.1f}".format
        ),
        Row.of("seconds per update", trainings, lambda one: one.seconds, "{:.5f}".format),
        Row.of("KiB kept by the critics", trainings, lambda one: [one.bytes_kept() / 1024], "{:.1f}".format),
    ]


def plot(trainings: dict[str, Training], at: Sequence[int], environment: str, table: Sequence[Row], path: Path) -> None:
    """The mean returns with their quartiles, and the time."""
    title = f"Soft actor-critic in {environment}: fastops and PyTorch"
    with curves_beside_times(title, table[1], "Time per update", path) as axes:
        for side, training in trainings.items():
            lower, upper = np.quantile(training.evaluations, (0.25, 0.75), axis=1)
            axes.fill_between(at, lower, upper, color=LINES[side]["color"], alpha=0.12, linewidth=0)
            axes.plot(at, training.mean_returns(), label=side, **LINES[side])
        axes.set(title=f"Return of {EVALUATION_EPISODES} episodes: mean, quartiles", xlabel="step", ylabel="return")


def train(trainings: dict[str, Training], steps: int, out: Console) -> list[int]:
    """Both sides, which take turns; gives the steps after which they were evaluated."""
    evaluated_at = []
    starts = range(0, steps, ROUND)
    for number, start in enumerate(track(starts, description=f"Rounds of {ROUND} steps", console=out)):
        end = min(start + ROUND, steps)
        is_evaluated = end == steps or end % EVALUATION_EVERY == 0
        for side in turns(number):
            for _ in range(start, end):
                trainings[side].explore()
            if is_evaluated:
                trainings[side].evaluate()
        if is_evaluated:
            evaluated_at.append(end)
    return evaluated_at


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    # A second thread has little to do in networks of this size.
    parser = arguments("Trains an agent to swing up a pendulum.", threads=1)
    parser.add_argument("--environment", default=ENVIRONMENT, help="of gymnasium, with continuous actions")
    parser.add_argument("--steps", type=positive, default=6000, help="steps of each side in its environment")
    parser.add_argument("--random-steps", type=positive, default=500, help="first steps, without policy or updates")
    parser.add_argument("--dropout", type=probability, default=0.01, help="probability of zeroing within the critics")
    parser.add_argument("--out", type=folder, help="folder for control.png; no plot without it")
    options = parser.parse_args(argv)
    if options.steps <= options.random_steps:
        parser.error(f"--steps must be more than the {options.random_steps} of --random-steps")
    try:
        with gymnasium.make(options.environment) as environment:
            spaces = environment.observation_space, environment.action_space
    except gymnasium.error.Error as error:
        parser.error(f"--environment: {error}")
    if not all(isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 for space in spaces):
        parser.error(f"--environment: it must have vectors of numbers, but has {spaces[0]} and {spaces[1]}")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    announce(out, f"Soft actor-critic in {options.environment}, critics with LayerNorm and dropout {options.dropout:g}")
    with gymnasium.make(options.environment) as environment:
        sizes = environment.observation_space.shape[0], environment.action_space.shape[0]
    run = options.environment, options.steps, options.random_steps, options.seed
    agents = make_agents(*sizes, options.dropout, options.seed)
    trainings = {side: Training(agent, *run) for side, agent in agents.items()}
    evaluated_at = train(trainings, options.steps, out)
    failures = check(trainings, out)
    if not options.dropout:
        losses = {side: training.losses for side, training in trainings.items()}
        failures += check_beginning(losses, COMPARED_UPDATES, TOLERANCE_PER_UPDATE, out)
    table = rows(trainings)
    out.print(comparison(f"\n{options.steps} steps", table))
    if options.out:
        path = options.out / "control.png"
        plot(trainings, evaluated_at, options.environment, table, path)
        out.print(f"Returns and times: {path}")
    fail_if(failures, "control")


if __name__ == "__main__":
    main()
