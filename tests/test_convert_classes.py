"""fastops.nn.convert on classes that are particular about subclasses, attributes or copies; trouble with one module."""

from __future__ import annotations

import abc
import copy
import io
import pickle
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fastops
from convertible import Block, Chain, assert_same, converted, ops_of, two_layers
from modules import batch, seeded


class Registered(Block):
    registry: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, label: str, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.registry.append(cls)


class WithArguments(Registered, label="mine"):
    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Slots(Block):
    __slots__ = ("wide",)

    def __init__(self) -> None:
        super().__init__()
        self.wide = True

    def __getstate__(self) -> Any:
        return self.__dict__.copy(), self.wide  # torch.nn.Module's knows attributes only

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[0])
        self.wide = state[1]

    def forward(self, x):
        return self.down(self.act(self.up(x) if self.wide else self.gate(x)))


class Abstract(Block, abc.ABC):
    @abc.abstractmethod
    def name(self) -> str: ...


class Concrete(Abstract):
    def name(self) -> str:
        return "concrete"

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Watched(Block):
    def __setattr__(self, name: str, value: Any) -> None:
        assert name != "__class__"
        super().__setattr__(name, value)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class WithNew(Block):
    def __new__(cls, size: int = 8, **options: Any) -> WithNew:
        assert size == 8
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[int]:
        return (8,)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class WithNewKeywords(WithNew):
    def __new__(cls, *, size: int = 0) -> WithNewKeywords:
        return super().__new__(cls, size or 8)

    def __init__(self, *, size: int = 0) -> None:
        super().__init__()

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"size": 8}


class WithReduce(Block):
    def forward(self, x):
        return self.down(self.act(self.up(x)))

    def __reduce__(self) -> Any:
        return type(self), (), self.__dict__.copy()


class Loud(type):
    """A metaclass that does more than make a class."""

    def __new__(mcs, name: str, bases: Any, body: Any, **arguments: Any) -> Any:
        raise AssertionError(f"{name} is one more class")


class WithMetaclass(Block):
    def forward(self, x):
        return self.down(self.act(self.up(x)))


class QuietMeta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class WithQuietMetaclass(Block, metaclass=QuietMeta):
    def forward(self, x):
        return self.down(self.act(self.up(x)))


CLASSES = [WithArguments, Slots, Concrete, Watched, WithNew, WithNewKeywords, WithReduce, WithQuietMetaclass]


@pytest.mark.parametrize("form", CLASSES)
def test_class(form: type[Block], device: Any) -> None:
    """Converted, as it was reverted, copied and pickled, by any protocol; converting makes no noise in the class."""
    registered = list(Registered.registry)
    model, reference, report = converted(lambda: form().requires_grad_(False), device)
    assert report.replaced
    copies = [copy.deepcopy(model), copy.copy(model)]
    copies += [pickle.loads(pickle.dumps(model, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies.append(torch.load(file, weights_only=False))
    for each in (model, *copies):
        assert_same(each, reference, device)
        assert isinstance(each, form)
        assert vars(each).keys() == vars(reference).keys()
        assert ops_of(each, batch(device)) == ([] if form is WithReduce and each is not model else ["mlp"])
    assert Registered.registry == registered
    report.revert()
    assert type(model) is form
    assert_same(model, reference, device)


def test_subclass_of_converted_class() -> None:
    """What derives from a converted module's class, as FSDP does, is announced to the original class."""
    model = seeded(WithArguments, torch.device("cpu"))
    fastops.nn.convert(model)
    count = len(Registered.registry)
    derived = type("Sharded", (type(model),), {}, label="sharded")
    assert Registered.registry[count:] == [derived]
    Registered.registry.pop()


def test_trouble_with_one(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose class or attributes make trouble is left with the reason, and the others are converted."""
    monkeypatch.setattr(Loud, "__new__", type.__new__)
    loud: Any = Loud("LoudBlock", (WithMetaclass,), {})
    monkeypatch.undo()
    broken = seeded(Chain, device)
    broken._modules["act"] = Trap()
    model = nn.ModuleList([seeded(two_layers, device), seeded(loud, device), broken, seeded(Chain, device)])
    report = fastops.nn.convert(model)
    assert [row.name for row in report.replaced] == ["0", "3"]
    assert [(row.name, row.reason) for row in report.left] == [
        ("1", "its class has a metaclass of its own, Loud"),
        ("2", "ZeroDivisionError: a trap"),
    ]
    assert type(model[1]) is loud
    assert type(broken) is Chain
    report.revert()
    assert [type(module) for module in model] == [nn.Sequential, loud, Chain, Chain]


class Trap(nn.Module):
    @property
    def _forward_hooks(self) -> Any:
        raise ZeroDivisionError("a trap")

    @_forward_hooks.setter
    def _forward_hooks(self, value: Any) -> None: ...


class Interrupting(nn.Module):
    @property
    def _forward_hooks(self) -> Any:
        raise KeyboardInterrupt

    @_forward_hooks.setter
    def _forward_hooks(self, value: Any) -> None: ...


def test_interrupted(device: Any) -> None:
    """Where convert ends without a report, nothing is converted."""
    broken = seeded(Chain, device)
    broken._modules["act"] = Interrupting()
    model = nn.ModuleList([seeded(two_layers, device), broken])
    with pytest.raises(KeyboardInterrupt):
        fastops.nn.convert(model)
    assert type(model[0]) is nn.Sequential
