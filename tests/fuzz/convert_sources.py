"""Sources of modules for the fuzzing of fastops.nn.convert."""

from __future__ import annotations

import dataclasses
import random

from fuzz.convert_prelude import PRELUDE

MODULES = [
    *("ReLU()", "GELU()", "GELU('tanh')", "SiLU()", "Tanh()", "Sigmoid()", "Softshrink(0.2)", "Hardtanh(-0.5, 0.7)"),
    *("ReLU(inplace=True)", "ELU(0.7)", "LeakyReLU(0.3)", "Mish()", "Softplus(2.0)", "ReLU6()", "Hardswish(True)"),
]
OTHER_MODULES = ["nn.PReLU()", "OwnActivation()", "OwnReLU()", "hooked(nn.ReLU(), 'activation')", "nn.Softmax(-1)"]
FUNCTIONS = [
    "F.relu",
    "F.gelu",
    "F.silu",
    "torch.tanh",
    "torch.sigmoid",
    "alias",
    "abs",
    "nn.functional.mish",
    "halved",
]
CLOSURE = ["act", "relu", "abs", "F", "print"]  # variables of the closure, some with names of globals and builtins


@dataclasses.dataclass
class Source:
    """A module's source, and how to call it."""

    text: str
    kind: str
    shape: tuple[int, ...]
    training: bool
    by_keyword: bool


def write(chance: random.Random) -> Source:
    """The source of a module that ``make()`` makes."""
    return _Writer(chance).source()


class _Writer:
    """Writes a class or a Sequential, from what it takes a random number for."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.attributes: list[str] = []  # statements of __init__
        self.body: list[str] = []  # statements of forward
        self.members: list[str] = []  # of the class
        self.closure: dict[str, str] = {}
        self.layers: dict[tuple[int, int], str] = {}
        self.count = 0
        self.features = 0

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def source(self) -> Source:
        self.features = inner = self.chance.choice([4, 6])
        if self.maybe(0.3):
            kind, lines = "Sequential", self.sequential()
        else:
            kind, lines = "class", self.block()
        wrapping = self.chance.choice(["{}", "{}", "nn.Sequential({}, nn.Linear({n}, 3), nn.ReLU())", "Wrapper({})"])
        lines += [
            "class Wrapper(nn.Module):",
            "    def __init__(self, block):",
            "        super().__init__()",
            "        self.block, self.again = block, block",
            "    def forward(self, x):",
            "        return self.block(x) - self.again(2 * x)",
            "def make():",
            f"    return {wrapping.format('block()', n=self.features)}",
        ]
        shape = (self.chance.choice([1, 3, 5]), inner)
        if "BatchNorm" in "\n".join(lines):
            shape = (5, inner)
        by_keyword = kind == "class" and wrapping == "{}" and self.maybe(0.1)
        return Source(PRELUDE + "\n".join(lines) + "\n", kind, shape, self.maybe(0.5), by_keyword)

    # ---- layers ----

    def linear(self, outputs: int) -> str:
        """The constructor of some linear layer; it changes the number of features."""
        sizes = f"{self.features}, {outputs}"
        self.features = outputs
        plain = f"nn.Linear({sizes}, bias={self.maybe(0.8)})"
        if self.maybe(0.7):
            return plain
        return self.chance.choice(
            [
                f"OwnLinear({sizes})",
                f"PlainLinear({sizes})",
                f"CallLinear({sizes})",
                f"property_linear({sizes})",
                f"hooked(nn.Linear({sizes}), 'linear')",
                f"nn.utils.parametrizations.weight_norm(nn.Linear({sizes}))",
                f"nn.utils.parametrizations.spectral_norm(nn.Linear({sizes}))",
                f"parametrize.register_parametrization(nn.Linear({sizes}), 'weight', Noisy())",
                f"parametrize.register_parametrization(nn.Linear({sizes}), 'bias', Noisy())",
                f"prune.l1_unstructured(nn.Linear({sizes}), 'weight', 0.5)",
                f"nn.Linear({sizes}).requires_grad_(False)",
                f"adapted(nn.Linear({sizes}), 'one element')",
                f"adapted(nn.Linear({sizes}), 'forward', note)",
                f"adapted(nn.Linear({sizes}), 'weight', Counted)",
                f"adapted(nn.Linear({sizes}), 'bias', Counted)",
                f"nn.Sequential(nn.Linear({sizes}), nn.Tanh())",
            ]
        )

    def activation(self) -> str:
        """The constructor of some activation."""
        if self.maybe(0.85):
            return f"nn.{self.chance.choice(MODULES)}"
        return self.chance.choice(OTHER_MODULES)

    def other(self) -> str:
        """The constructor of a layer of another kind."""
        return self.chance.choice(
            [
                *("nn.Dropout(0.4)", "nn.Dropout(0.0)", "nn.Identity()", "nn.Dropout(0.3, inplace=True)"),
                *(
                    f"nn.LayerNorm({self.features})",
                    f"nn.BatchNorm1d({self.features})",
                    "hooked(nn.Dropout(0.2), 'dropout')",
                ),
            ]
        )

    def size(self) -> int:
        return self.chance.choice([4, 6, 8])

    # ---- Sequential ----

    def sequential(self) -> list[str]:
        layers = []
        for _ in range(self.chance.randint(1, 4)):
            layers.append(self.linear(self.size()))
            if self.maybe(0.8):
                layers.append(self.activation())
            if self.maybe(0.3):
                layers.append(self.other())
        if self.maybe(0.2):
            layers.append("nn.Flatten(0, -2)")
        base = "nn.Sequential"
        lines = []
        if self.maybe(0.3):
            base = "Chain"
            lines = ["class Chain(nn.Sequential):"]
            lines += self.chance.choice(
                [
                    ["    note = 1"],
                    ["    def forward(self, x):", "        note('forward')", "        return super().forward(x)"],
                    ["    def __iter__(self):", "        return iter(list(self._modules.values())[:1])"],
                    ["    def __call__(self, x):", "        note('call')", "        return super().__call__(x)"],
                ]
            )
        shared = self.maybe(0.15) and self.features == self.size()
        lines += ["def block():", f"    layers = [{', '.join(layers)}]"]
        lines += ["    layers.append(layers[-1])"] if shared else []
        return [*lines, f"    return {base}(*layers)"]

    # ---- a class with a forward ----

    def block(self) -> list[str]:
        value = "x"
        for _ in range(self.chance.randint(1, 3)):
            value = self.step(value)
        if self.maybe(0.1):
            value = self.chance.choice([f"x.sum() + {value}", f"({value})[:, :1]", f"{value} * 2", f"({value}).sin()"])
        self.body.append(f"return {value}")
        bases, keywords = "nn.Module", ""
        special = self.chance.randrange(20)
        if special == 0:
            keywords = ", metaclass=Loud"
        elif special == 1:
            bases, keywords = "Registering", ", label='mine'"
        elif special == 2:
            bases = "nn.Module, abc.ABC"
        elif special == 3:
            self.members += ["def __getattr__(self, name):", "    note(name)", "    return super().__getattr__(name)"]
        elif special == 4:
            self.members += ["def __call__(self, x):", "    note('call')", "    return super().__call__(x)"]
        elif special == 5:
            self.members += ["__slots__ = ('flag',)"]
        name = self.chance.choice(["Block", "_Block", "__Block"])
        extra = ", scale=1.0" if self.maybe(0.05) else ""
        decorator = [self.chance.choice(["@torch.no_grad()", "@functools.wraps(len)"])] if self.maybe(0.03) else []
        lines = [
            f"class {name}({bases}{keywords}):",
            *(f"    {line}" for line in self.members),
            "    def __init__(self):",
            "        super().__init__()",
            "        self.flag, self.__axis, self.p, self.sizes = True, -1, 0.3, None",
            *(f"        {line}" for line in self.attributes),
            *(f"    {line}" for line in decorator),
            f"    def forward(self, x{extra}):",
            *(f"        {line}" for line in self.body),
        ]
        around = ["def block():", *(f"    {line}" for line in lines), f"    return {name}()"]
        for variable, value in self.closure.items():
            around.insert(1, f"    {variable} = {value}")
        return around

    def keep(self, constructor: str) -> str:
        """An attribute of the module, ``self.name``."""
        self.count += 1
        name = self.chance.choice(["layer", "layer", "layer", "__layer", "__layer_"]) + str(self.count)
        self.attributes.append(f"self.{name} = {constructor}")
        return f"self.{name}"

    def store(self, value: str) -> str:
        """The value, in a variable or not."""
        if self.maybe(0.6):
            return value
        name = self.chance.choice(["x", "h", "__h", "hidden", "alias" if self.maybe(0.2) else "y"])
        self.body.append(f"{name} = {value}")
        return name

    def project(self, value: str, outputs: int) -> str:
        if self.maybe(0.1) and (self.features, outputs) in self.layers:
            layer = self.layers[self.features, outputs]
            self.features = outputs
        else:
            sizes = (self.features, outputs)
            layer = self.layers[sizes] = self.keep(self.linear(outputs))
        return f"{layer}({value})"

    def activate(self, value: str) -> str:
        """A call of some activation: a module, a function, a variable of the closure, a method."""
        choice = self.chance.randrange(10)
        if choice < 4:
            return f"{self.keep(self.activation())}({value})"
        if choice < 7:
            return f"{self.chance.choice(FUNCTIONS)}({value})"
        if choice == 7:
            variable = self.chance.choice(CLOSURE)
            if variable == "F":  # it hides the module of this name
                self.closure[variable] = "nn.functional"
                return f"F.silu({value})"
            self.closure[variable] = self.chance.choice(
                ["torch.nn.functional.gelu", "torch.tanh", "nn.ReLU()", "scaled"]
            )
            return f"{variable}({value})"
        method = ["def method(self, x):", "    note('method')", "    return torch.tanh(x)"]
        self.members += [] if method[0] in self.members else method
        return self.chance.choice(
            [
                f"F.gelu({value}, approximate='tanh')",
                f"F.leaky_relu({value}, negative_slope=self.p)",
                f"F.elu({value}, alpha=0.5)",
                f"scaled({value}, factor=self.p, axes=[0])",
                f"F.softplus({value}, beta=2)",
                f"self.method({value})",
            ]
        )

    def step(self, value: str) -> str:
        choice = self.chance.randrange(8)
        if choice < 3:
            value = self.store(self.activate(self.store(self.project(value, self.size()))))
        elif choice == 3:
            value = self.gate(value)
        elif choice == 4:
            value = self.packed(value)
        else:
            value = self.store(self.activate(self.project(value, self.size())))
            value = self.store(self.middle(value))
        return self.project(value, self.size()) if self.maybe(0.8) else value

    def middle(self, value: str) -> str:
        n = self.features
        return self.chance.choice(
            [
                f"{self.keep(self.other())}({value})",
                f"F.dropout({value}, p=self.p, training=self.training)",
                f"F.layer_norm({value}, normalized_shape=[{n}])",
                f"F.softmax({value}, dim=self.__axis)",
                f"torch.flip({value}, dims=[0])",
            ]
        )

    def gate(self, value: str) -> str:
        value = self.variable(value)
        before, outputs = self.features, self.size()
        gate = self.project(value, outputs)
        self.features = before
        up = self.project(value, 1 if self.maybe(0.1) else outputs)
        self.features = outputs
        order = self.chance.randrange(4)
        if order == 0:
            return f"{self.activate(gate)} * {up}"
        if order == 1:
            return f"{up} * {self.activate(gate)}"
        self.count += 1
        first, second = f"a{self.count}", f"b{self.count}"
        statements = [f"{first} = {gate}", f"{second} = {up}"]
        self.body += statements if order == 2 else reversed(statements)
        return f"{self.activate(first)} * {second}"

    def packed(self, value: str) -> str:
        outputs = self.chance.choice([2, 8, 12, 3])
        both = self.project(value, outputs)
        self.features = (outputs + 1) // 2
        self.count += 1
        first, second = f"a{self.count}", f"b{self.count}"
        if self.maybe(0.7):
            self.body.append(
                f"{first}, {second} = {both}.chunk(2, {self.chance.choice(['-1', 'dim=-1', 'dim=self.__axis'])})"
            )
        else:
            self.body.append(f"c{self.count} = {both}.chunk(2, -1)")
            first, second = f"c{self.count}[0]", f"c{self.count}[1]"
        if self.maybe(0.3):
            return f"({first} * {self.activate(second)} if self.flag else {self.activate(first)} * {second})"
        return f"{first} * {self.activate(second)}" if self.maybe(0.5) else f"{self.activate(first)} * {second}"

    def variable(self, value: str) -> str:
        if value.isidentifier():
            return value
        self.count += 1
        self.body.append(f"v{self.count} = {value}")
        return f"v{self.count}"
