"""Generators: seeds, states, and what draws from them."""

import pytest
import torch
import torch.nn.functional as F

DRAWS = {
    "rand": lambda device, **k: torch.rand(50, device=device, **k),
    "randn": lambda device, **k: torch.randn(50, device=device, **k),
    "randint": lambda device, **k: torch.randint(0, 1000, (50,), device=device, **k),
    "randperm": lambda device, **k: torch.randperm(50, device=device, **k),
    "bernoulli": lambda device, **k: torch.empty(50, device=device).bernoulli_(0.3, **k),
    "exponential": lambda device, **k: torch.empty(50, device=device).exponential_(**k),
    "random": lambda device, **k: torch.empty(50, device=device).random_(**k),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seeds(draw: object) -> None:
    """A seed gives the same numbers, which are those of a CPU generator; another gives others."""
    torch.hostmem.manual_seed(5)
    first, second = draw("hostmem"), draw("hostmem")
    torch.manual_seed(5)  # seeds every device
    assert torch.equal(draw("hostmem"), first)
    assert torch.equal(draw("hostmem"), second)
    assert not torch.equal(first, second)
    assert torch.equal(first.cpu(), draw("cpu", generator=torch.Generator().manual_seed(5)))
    torch.hostmem.manual_seed(6)
    assert not torch.equal(draw("hostmem"), first)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_generator(draw: object) -> None:
    """A generator of one's own leaves the default one alone, and one of the CPU is refused."""
    generator = torch.Generator("hostmem").manual_seed(3)
    assert generator.device == torch.device("hostmem:0") and generator.initial_seed() == 3
    before = torch.hostmem.get_rng_state()
    first = draw("hostmem", generator=generator)
    assert torch.equal(torch.hostmem.get_rng_state(), before)
    assert torch.equal(draw("hostmem", generator=generator.manual_seed(3)), first)
    with pytest.raises(RuntimeError, match="generator"):
        draw("hostmem", generator=torch.Generator())


def test_states() -> None:
    """States are saved and restored, one for each device."""
    states = torch.hostmem.get_rng_state_all()
    first = [torch.rand(3, device=f"hostmem:{i}") for i in range(2)]
    torch.hostmem.set_rng_state_all(states)
    assert all(torch.equal(torch.rand(3, device=x.device), x) for x in first)
    torch.hostmem.set_rng_state(states[1], "hostmem:1")
    assert torch.equal(torch.rand(3, device="hostmem:1"), first[1])
    generator = torch.Generator("hostmem:1")
    generator.set_state(states[1])
    assert torch.equal(torch.rand(3, device="hostmem:1", generator=generator), first[1])
    copy = generator.clone_state()
    x = torch.rand(3, device="hostmem:1", generator=generator)
    assert torch.equal(torch.rand(3, device="hostmem:1", generator=copy), x)


def test_seed_functions() -> None:
    """The other functions of the device's module."""
    torch.hostmem.manual_seed_all(11)
    assert torch.hostmem.initial_seed() == 11
    seed = torch.hostmem.seed()
    assert torch.hostmem.initial_seed() == seed
    torch.hostmem.seed_all()
    assert torch.hostmem.default_generators[0].initial_seed() == torch.hostmem.default_generators[1].initial_seed()


def test_fork_rng() -> None:
    """torch.random.fork_rng restores the device's state."""
    torch.hostmem.manual_seed(1)
    expected = torch.rand(3, device="hostmem")
    torch.hostmem.manual_seed(1)
    with torch.random.fork_rng(devices=[0, 1], device_type="hostmem"):
        torch.rand(3, device="hostmem")
    assert torch.equal(torch.rand(3, device="hostmem"), expected)


def test_dropout() -> None:
    """Dropout draws from the device's generator, forward and when it is computed again."""
    x = torch.ones(1000, device="hostmem", requires_grad=True)
    torch.hostmem.manual_seed(2)
    y = F.dropout(x, 0.25)
    assert 0.15 < (y == 0).float().mean().item() < 0.35
    assert torch.equal(y.cpu()[y.cpu() != 0], torch.full(((y != 0).sum().item(),), 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad, y)
    x.grad = None
    z = torch.utils.checkpoint.checkpoint(lambda t: F.dropout(t, 0.25) * t, x, use_reentrant=False)
    z.sum().backward()
    assert torch.equal(x.grad, 2 * z)
    assert F.dropout(x, 0.5, training=False) is x
