"""Ensembles: mlp and mlp_jet with the parameters of several networks, and fastops.nn.EnsembleMLP."""

import itertools
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fastops
from checks import CalledOps, assert_meta_agrees, assert_same_bits
from perceptrons import Network, draw_network, expected_network
from strategies import ONCE, dtypes, every_dtype, random_tensor

ops = torch.ops.fastops
many = settings(max_examples=5 * ONCE * settings().max_examples)


def members_of(network: Network) -> list:
    """The networks of an ensemble."""
    return [
        replace(
            network,
            input=network.input[i],
            weights=[weight[i] for weight in network.weights],
            biases=[bias if bias is None else bias[i] for bias in network.biases],
            grad=network.grad[i],
        )
        for i in range(len(network.input))
    ]


@many
@given(st.data(), dtypes)
def test_members(device, data, dtype):
    """Each member's output and gradients are those of its own network, with the layouts of the Meta kernel."""
    network = draw_network(data, dtype, device, max_depth=3, members=data.draw(st.integers(0, 4)))
    mask = [leaf is not None and data.draw(st.booleans()) for leaf in network.leaves]
    output, saved = ops.mlp_forward(*network.arguments)
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)
    grads = ops.mlp_backward(*args)
    for i, member in enumerate(members_of(network)):
        expected, expected_grads = expected_network(member)
        expected.assert_holds(ops.mlp(*network.arguments)[i], f"member {i}")
        expected.assert_holds(output[i], f"member {i} in training")
        wanted = itertools.compress(expected_grads, mask)
        for place, (result, grad) in enumerate(zip(grads, wanted, strict=True)):
            grad.assert_holds(result[i], f"gradient {place} of {mask} of member {i}")
    assert_meta_agrees((output, saved), ops.mlp_forward, *network.arguments)
    assert_meta_agrees(grads, ops.mlp_backward, *args)


def stacked(members, *sizes, dtype=torch.float64, device="cpu"):
    """Weights and biases of an ensemble."""
    layers = list(itertools.pairwise(sizes))
    weights = [random_tensor((members, n, k), dtype, device, seed=i, scale=0.5) for i, (k, n) in enumerate(layers)]
    biases = [random_tensor((members, n), dtype, device, seed=9 + i) for i, (_, n) in enumerate(layers)]
    return weights, biases


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}


@pytest.mark.parametrize(("members", "rows", "width"), [(3, 700, 40), (5, 20, 200), (40, 30, 16), (2, 2100, 24)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_sizes(device, members, rows, width, dtype, restore_threads):
    """Members that threads share, and members that each thread has for itself, compute what single networks do."""
    torch.set_num_threads(2)
    weights, biases = stacked(members, 7, width, width, 3, dtype=dtype, device=device)
    x = random_tensor((members, rows, 7), dtype, device, seed=5)
    leaves = [leaf.requires_grad_() for leaf in (*weights, *biases)]
    output = ops.mlp(x, weights, biases, "tanh")
    grads = torch.autograd.grad(output, leaves, output.detach())
    for i in range(members):
        own = [[parameter[i].detach().requires_grad_() for parameter in each] for each in (weights, biases)]
        single = ops.mlp(x[i], *own, "tanh")
        expected = [single, *torch.autograd.grad(single, own[0] + own[1], single.detach())]
        for result, reference in zip([output, *grads], expected, strict=True):
            error = (result[i] - reference).double().abs().max()
            assert error <= TOLERANCES[dtype] * reference.double().abs().max()


@every_dtype
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_transposed_weights(device, dtype, rows):
    """Weights that lie in memory as [members, in_features, out_features]."""
    weights, biases = stacked(3, 7, 40, 33, 3, dtype=dtype, device=device)
    x = random_tensor((3, rows, 7), dtype, device, seed=5).requires_grad_()
    transposed = [weight.mT.contiguous().mT.requires_grad_() for weight in weights]
    output = ops.mlp(x, transposed, biases, "tanh")
    results = [output, *torch.autograd.grad(output, [x, *transposed], output.detach())]
    doubles = [leaf.detach().cpu().double().requires_grad_() for leaf in (x, *weights)]
    exact = ops.mlp(doubles[0], doubles[1:], [bias.cpu().double() for bias in biases], "tanh")
    expected = [exact, *torch.autograd.grad(exact, doubles, output.detach().cpu().double())]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01}[dtype]
    for result, reference in zip(results, expected, strict=True):
        assert (result.detach().cpu().double() - reference).abs().max() <= tolerance * reference.abs().max()


def test_threads(device, restore_threads):
    """The number of threads changes no bit."""
    weights, biases = stacked(6, 5, 33, 2, dtype=torch.float32, device=device)
    x = random_tensor((6, 90, 5), torch.float32, device, seed=5)

    def run():
        output, saved = ops.mlp_forward(x, weights, biases, "tanh")
        mask = [True] * 5
        grads = ops.mlp_backward(output, x, weights, biases, None, saved, "tanh", "identity", [], [], mask)
        return [output, *grads]

    torch.set_num_threads(1)
    expected = run()
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for result, reference in zip(run(), expected, strict=True):
            assert_same_bits(result, reference, f"{threads} threads")


@pytest.mark.parametrize("members", [3, 0])
def test_expanded(device, members):
    """Members that share an input or a parameter, by expand, need no copies of it."""
    weights, biases = stacked(1, 4, 6, 2, device=device)
    x = random_tensor((5, 4), torch.float64, device, seed=1)
    leaves = [x.requires_grad_(), *[p.requires_grad_() for p in weights + biases]]
    arguments = [
        x.expand(members, 5, 4),
        [w.expand(members, *w.shape[1:]) for w in weights],
        [b.expand(members, *b.shape[1:]) for b in biases],
    ]
    output = ops.mlp(*arguments, "tanh")
    single = ops.mlp(x, [w[0] for w in weights], [b[0] for b in biases], "tanh")
    torch.testing.assert_close(output, single.expand(members, 5, 2))
    grads = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    expected = torch.autograd.grad(members * single.square().sum(), leaves, create_graph=True)
    torch.testing.assert_close(grads, expected)
    again = [torch.autograd.grad(sum(g.square().sum() for g in each), leaves) for each in (grads, expected)]
    torch.testing.assert_close(again[0], again[1])


@pytest.mark.parametrize("way", ["reverse", "torch.func"])
def test_expanded_leaves(device, way):
    """Where the expanded tensor is what is differentiated for, each member has its own gradient."""
    weights, biases = stacked(1, 4, 6, 2, device=device)
    leaves = [p.expand(3, *p.shape[1:]) for p in weights + biases]
    x = random_tensor((3, 5, 4), torch.float64, device, seed=1)

    def plain(x, w0, w1, b0, b1):
        return torch.baddbmm(b1.unsqueeze(-2), torch.tanh(torch.baddbmm(b0.unsqueeze(-2), x, w0.mT)), w1.mT)

    def ours(x, w0, w1, b0, b1):
        return ops.mlp(x, [w0, w1], [b0, b1], "tanh")

    def second(function):
        if way == "reverse":
            point, *inputs = (tensor.detach().requires_grad_() for tensor in (x, *leaves))
            (grad,) = torch.autograd.grad(function(point, *inputs).sin().sum(), point, create_graph=True)
            return torch.autograd.grad(grad.square().sum(), inputs)
        places = tuple(range(1, 5))
        first = torch.func.grad(lambda *tensors: function(*tensors).sin().sum())
        return torch.func.grad(lambda *tensors: first(*tensors).square().sum(), places)(x, *leaves)

    torch.testing.assert_close(second(ours), second(plain))


# ---- vmap ----


def test_vmap_over_weights_is_one_call(device):
    """It reaches the op of an ensemble."""
    weights, biases = stacked(3, 4, 5, 2, device=device)
    x = random_tensor((7, 4), torch.float64, device, seed=1)
    with CalledOps() as called:
        torch.func.vmap(lambda w0, w1, b0, b1: ops.mlp(x, [w0, w1], [b0, b1], "tanh"))(*weights, *biases)
    assert [(name, [w.shape for w in args[1]]) for name, args in called.calls] == [("mlp", [(3, 5, 4), (3, 2, 5)])]


def call(x, w0, w1, b0, b1):
    """An mlp of two layers."""
    return ops.mlp(x, [w0, w1], [b0, b1], "tanh")


def call_jet(x, w0, w1, b0, b1):
    """The same with derivatives, of points in groups of three rows."""
    return ops.mlp_jet(x, 1, [w0, w1], [b0, b1], "tanh")


def sample_tensors(members, batched, device):
    """The arguments of `call` and `call_jet`, of ensembles or single networks; some with 2 of each in front."""
    front = [(2,) if is_batched else () for is_batched in batched]
    own = (members,) if members else ()
    sizes = [(*own, 4, 3, 3), (*own, 5, 3), (*own, 2, 5), (*own, 5), (*own, 2)]
    return [
        random_tensor((*batch, *size), torch.float64, device, seed=i)
        for i, (batch, size) in enumerate(zip(front, sizes, strict=True))
    ]


@pytest.mark.parametrize("function", [call, call_jet])
@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("batched", [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (1, 1, 1, 1, 1), (0, 0, 0, 0, 1)])
def test_vmap(device, function, members, batched):
    """A batch of networks or of ensembles, and the gradients of each, also where parameters are shared."""
    tensors = sample_tensors(members, batched, device)
    in_dims = tuple(0 if is_batched else None for is_batched in batched)
    each = [
        [tensor[i] if is_batched else tensor for tensor, is_batched in zip(tensors, batched, strict=True)]
        for i in range(2)
    ]
    expected = torch.stack([function(*sample) for sample in each])
    torch.testing.assert_close(torch.func.vmap(function, in_dims)(*tensors), expected)

    for places in ((0,), (0, 1, 2, 3, 4)):
        gradients = torch.func.grad(lambda *t: function(*t).square().sum(), places)
        expected = [torch.stack(grads) for grads in zip(*(gradients(*sample) for sample in each), strict=True)]
        torch.testing.assert_close(list(torch.func.vmap(gradients, in_dims)(*tensors)), expected)


def test_nested_vmap(device):
    """Networks in networks: a vmap in a vmap over weights, and gradients between the two."""
    weights, biases = stacked(6, 3, 4, 2, device=device)
    grouped = [p.unflatten(0, (2, 3)) for p in (*weights, *biases)]
    x = random_tensor((5, 3), torch.float64, device, seed=1)
    nested = torch.func.vmap(torch.func.vmap(lambda *p: call(x, *p)))(*grouped)
    expected = ops.mlp(x.expand(6, 5, 3), weights, biases, "tanh").unflatten(0, (2, 3))
    torch.testing.assert_close(nested, expected)
    gradients = torch.func.vmap(torch.func.grad(lambda *p: torch.func.vmap(lambda *q: call(x, *q))(*p).square().sum()))
    single = torch.func.grad(lambda w0, *rest: call(x, w0, *rest).square().sum())
    torch.testing.assert_close(
        gradients(*grouped), torch.stack([single(*p) for p in zip(*weights, *biases, strict=True)]).unflatten(0, (2, 3))
    )


# ---- errors ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (4, 6, 5)}, r"input must have shape \[members, \.\.\., in_features\] for the 3 members of weights\[0\]"),
        ({"x": (5,)}, r"input must have shape \[members, \.\.\., in_features\] for the 3 members of weights\[0\]"),
        ({"x": (3, 6, 4)}, r"weights\[0\] has 5 input features, but input has 4"),
        ({"w1": (2, 2, 7)}, r"weights\[1\] has 2 members, but weights\[0\] has 3"),
        ({"w1": (2, 7)}, r"weights\[1\] must have shape \[members, out_features, in_features\], but has 2 dimensions"),
        ({"b0": (7,)}, r"biases\[0\] has shape \[7\], but must have shape \[3, 7\]"),
        ({"w0": (1, 3, 7, 5)}, r"weights\[0\] must have shape \[out_features, in_features\], but has 4 dimensions"),
    ],
)
def test_errors(device, change, message):
    """An argument that does not fit is named, with what it got and what it needs."""
    sizes = {"x": (3, 6, 5), "w0": (3, 7, 5), "w1": (3, 2, 7), "b0": (3, 7), "b1": (3, 2)} | change
    x, w0, w1, b0, b1 = (torch.zeros(size, device=device) for size in sizes.values())
    with pytest.raises(ValueError, match=message):
        ops.mlp(x, [w0, w1], [b0, b1], "relu")


# ---- the module ----


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_module(device, activation):
    """It computes what its members do; their state dicts stacked are its own."""
    torch.manual_seed(0)
    ensemble = fastops.nn.EnsembleMLP(3, 4, [8, 8], 2, activation=activation, output_activation="silu").to(device)
    state = torch.random.get_rng_state()
    members = ensemble.to_modules()
    assert torch.equal(torch.random.get_rng_state(), state)
    x = torch.randn(5, 4, device=device)
    expected = torch.stack([member(x) for member in members])
    torch.testing.assert_close(ensemble(x), expected)
    torch.testing.assert_close(ensemble(x.expand(3, 5, 4)), expected)
    torch.testing.assert_close(ensemble(x[0]), expected[:, 0])
    parameters, _ = torch.func.stack_module_state(members)
    assert {name: value.shape for name, value in parameters.items()} == {
        name: value.shape for name, value in ensemble.state_dict().items()
    }
    other = fastops.nn.EnsembleMLP(3, 4, [8, 8], 2, activation=activation, output_activation="silu").to(device)
    assert not torch.equal(other(x), expected)
    other.load_state_dict(parameters)
    torch.testing.assert_close(other(x), expected)
    torch.testing.assert_close(fastops.nn.EnsembleMLP.from_modules(members)(x), expected)
    mlps = [fastops.nn.MLP.from_sequential(member) for member in members]
    torch.testing.assert_close(fastops.nn.EnsembleMLP.from_modules(mlps)(x), expected)


def test_from_modules_copies():
    """The members keep their parameters; what needs no gradient needs none in the ensemble."""
    members = [fastops.nn.MLP(2, 3, 1).eval() for _ in range(2)]
    for member in members:
        member[0].bias.requires_grad_(False)
    ensemble = fastops.nn.EnsembleMLP.from_modules(members)
    assert not ensemble.training
    assert [p.requires_grad for p in ensemble.parameters()] == [True, False, True, True]
    before = members[0][0].weight.clone()
    with torch.no_grad():
        ensemble[0].weight.zero_()
    assert torch.equal(members[0][0].weight, before)
    for member in ensemble.to_modules():
        assert [p.requires_grad for p in member.parameters()] == [True, False, True, True]
    assert not ensemble.checkpoint
    assert fastops.nn.EnsembleMLP.from_modules([fastops.nn.MLP(2, 3, checkpoint=True)]).checkpoint


def test_where_people_have_them_from():
    """Pickles look there, too."""
    for kind in (fastops.nn.EnsembleMLP, fastops.nn.EnsembleLinear):
        assert kind.__module__ == "fastops.nn"
    ensemble = pickle.loads(pickle.dumps(fastops.nn.EnsembleMLP(2, 3, 4)))
    assert "Fastops" in ensemble(torch.randn(2, 5, 3)).grad_fn.name()


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "modules is empty"),
        ([nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 4))], r"modules\[1\] has other layers"),
        ([nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Sequential(nn.Linear(2, 3), nn.Tanh())], r"modules\[1\] has"),
        ([nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, 1))], r"modules\[0\], module 2: an"),
        (
            [nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3)).requires_grad_(False)],
            r"modules\[1\] .*trained",
        ),
        ([nn.Sequential(nn.ReLU())], r"modules\[0\], module 0: expected torch.nn.Linear.* is ReLU"),
    ],
)
def test_from_modules_errors(modules, message):
    """Which module does not fit, and why."""
    with pytest.raises(ValueError, match=message):
        fastops.nn.EnsembleMLP.from_modules(modules)


def test_captured():
    """Compiled, exported, scripted and traced it computes the same."""
    ensemble = fastops.nn.EnsembleMLP(3, 4, 8, 2, activation="tanh")
    x = torch.randn(5, 4)
    expected = ensemble(x)
    torch.testing.assert_close(torch.compile(ensemble, fullgraph=True)(x), expected)
    torch.testing.assert_close(torch.export.export(ensemble, (x,)).module()(x), expected)
    torch.testing.assert_close(torch.jit.script(ensemble)(x), expected)
    torch.testing.assert_close(torch.jit.trace(ensemble, (x,))(x), expected)
    parameters = [parameter.detach() for parameter in ensemble.parameters()]
    tensors = (x.expand(3, 5, 4), *parameters)
    function = lambda y, w0, b0, w1, b1: fastops.functional.mlp(y, [w0, w1], [None, b1], "tanh")  # noqa: E731
    torch.testing.assert_close(torch.jit.trace(function, tensors)(*tensors), function(*tensors))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_hooks(checkpoint):
    """A module with a hook is called."""
    ensemble = fastops.nn.EnsembleMLP(2, 3, 4, 1, activation="tanh", checkpoint=checkpoint)
    x = torch.randn(5, 3)
    expected = ensemble(x)
    seen = []
    ensemble[1].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    torch.testing.assert_close(ensemble(x), expected)
    assert seen == [(2, 5, 4)]
    ensemble(x).sum().backward()
    assert ensemble[0].weight.grad.shape == (2, 4, 3)


def test_replaced_forward(monkeypatch):
    """A replaced forward is called, of the class as of one layer; and a dropout in between is one."""
    ensemble = fastops.nn.EnsembleMLP(2, 3, 4, 1, activation="tanh").eval()
    x = torch.randn(5, 3)
    expected = ensemble(x)
    forward = fastops.nn.EnsembleLinear.forward
    calls = []

    def replacement(self, input):
        calls.append(self)
        return forward(self, input)

    with monkeypatch.context() as patch:
        patch.setattr(fastops.nn.EnsembleLinear, "forward", replacement)
        torch.testing.assert_close(ensemble(x), expected)
    assert calls == [ensemble[0], ensemble[2]]
    ensemble[2].forward = lambda input: 2 * forward(ensemble[2], input)
    torch.testing.assert_close(ensemble(x), 2 * expected)
    del ensemble[2].forward
    torch.testing.assert_close(ensemble(x), expected)
    ensemble.append(nn.Dropout(1.0).eval())
    torch.testing.assert_close(ensemble(x), expected)
    assert not ensemble.train()(x).any()


def test_of_other_modules():
    """Neither takes the layers of the other for its own."""
    mlp = fastops.nn.MLP(3, 4, 1).eval()
    ensemble = fastops.nn.EnsembleMLP(2, 3, 4, 1).eval()
    mlp[0] = fastops.nn.EnsembleLinear(2, 3, 4)
    mlp[2] = fastops.nn.EnsembleLinear(2, 4, 1)
    ensemble[0], ensemble[2] = nn.Linear(3, 4), nn.Linear(4, 1)
    x = torch.randn(2, 5, 3)
    for module in (mlp, ensemble):
        torch.testing.assert_close(module(x), module[2](module[1](module[0](x))))


def test_derivatives():
    """Those in the input are each member's."""
    ensemble = fastops.nn.EnsembleMLP(3, 4, [8, 8], 4, activation="tanh", dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64)
    members = [fastops.nn.MLP.from_sequential(member) for member in ensemble.to_modules()]
    methods = "value_gradient_laplacian value_jacobian_hessian hessian value_jacobian jacobian divergence"
    for method in methods.split():
        results = getattr(ensemble, method)(x)
        each = [getattr(member, method)(x) for member in members]
        if method in ("jacobian", "hessian"):
            torch.testing.assert_close(results, torch.stack(each))
        else:
            torch.testing.assert_close(list(results), [torch.stack(parts) for parts in zip(*each, strict=True)])
    probe = torch.randn(3, 5, 4, dtype=torch.float64)
    estimate = ensemble.divergence(x.expand(3, 5, 4), probe)[1]
    expected = [member.divergence(x, v)[1] for member, v in zip(members, probe, strict=True)]
    torch.testing.assert_close(estimate, torch.stack(expected))
    expected = [member.divergence(x, probe[0])[1] for member in members]
    torch.testing.assert_close(ensemble.divergence(x, probe[0])[1], torch.stack(expected))


def test_initialization():
    """As torch.nn.Linear: uniform within 1 / sqrt(in_features), each member by itself."""
    layer = fastops.nn.EnsembleLinear(64, 25, 40)
    for parameter in layer.parameters():
        bound = parameter.abs().max()
        assert 0.19 < bound <= 0.2
        assert abs(parameter.std() - 0.2 / 3**0.5) < 0.005
    assert not torch.equal(layer.weight[0], layer.weight[1])
    assert repr(layer) == "EnsembleLinear(members=64, in_features=25, out_features=40, bias=True)"
