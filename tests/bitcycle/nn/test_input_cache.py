"""Layers that read the same tensor encode it once, and only then."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.quantizers import SBM, sbm
from tests.bitcycle.nn.layers import encoded

SIZE = 8
# kernel and rules: values, a layer's product as one call, separate products of codes
WAYS = {
    "simulate": ("simulate", SBM()),
    "whole": ("native", SBM()),
    "separate": ("native", SBM(grad_input_weight="per_input_channel")),
}
every_way = pytest.mark.parametrize("way", WAYS)


class Projections(nn.Module):
    """Three layers on one input, as in attention."""

    def __init__(self, between=None):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.between = between

    def forward(self, inner):
        q = self.q(inner)
        if self.between is not None:
            self.between(inner)
        return q + self.k(inner) * self.v(inner)


def model(way="whole", precision="w8a8e8", **kwargs):
    torch.manual_seed(0)
    kernel, rules = WAYS[way]
    net = bc.quantize_model(Projections(**kwargs), rules, kernel=kernel)
    bc.set_precision(net, precision)
    return net


def leaf():
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def inner():
    """The result of an operation, as between layers."""
    return leaf() * 1.0


@every_way
def test_three_layers_on_one_tensor_encode_it_once(way):
    with encoded() as roles:
        model(way)(inner())
    assert roles.count("act") == 1


@every_way
@pytest.mark.parametrize("precision", ["w8a8e8", "w4a4e4"])
def test_the_result_is_that_of_three_copies(way, precision):
    net = model(way, precision)
    first, copies = leaf(), [leaf() for _ in range(3)]
    net(first * 1.0).sum().backward()
    other = model(way, precision)
    (other.q(copies[0]) + other.k(copies[1]) * other.v(copies[2])).sum().backward()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
    torch.testing.assert_close(first.grad, sum(c.grad for c in copies))
    for one, two in zip(net.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two)  # every layer has observed its input


@every_way
def test_a_range_that_processes_share_is_exchanged_once(way, monkeypatch):
    exchanged = []
    monkeypatch.setattr(sbm, "_is_distributed", lambda: True)
    monkeypatch.setattr(sbm.dist, "all_reduce", lambda ends, op: exchanged.append(ends))
    kernel, rules = WAYS[way]
    net = bc.quantize_model(Projections(), replace(rules, sync_ranges=True), kernel=kernel)
    bc.set_precision(net, "w8a8e8")
    output = net(inner())
    assert len(exchanged) == 1  # a process whose batch is empty exchanges as often
    output.sum().backward()
    assert len(exchanged) == 1 + 3


@every_way
def test_an_input_that_is_not_finite_shows_in_the_health_of_every_layer(way):
    net = model(way)
    net(torch.full((4, SIZE), torch.inf, requires_grad=True) * 1.0)
    assert [layer.health.isnan().tolist()[1] for layer in (net.q, net.k, net.v)] == [True] * 3


@every_way
@pytest.mark.parametrize("first", ["linear", "product"])
def test_a_layer_and_a_product_of_activations_read_one_turned_tensor_alike(way, first):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.product = nn.Linear(SIZE, SIZE), bc.MatMul()

    def outputs(*, is_shared):
        torch.manual_seed(0)
        kernel, rules = WAYS[way]
        net = bc.quantize_model(Both(), rules, kernel=kernel)
        bc.set_precision(net, "w8a8e8")
        x, other = (torch.randn(2, SIZE, n, requires_grad=True) for n in (SIZE, 3))
        turned = (x * 1.0).mT
        arguments = {"linear": (turned,), "product": (turned if is_shared else turned * 1.0, other)}
        order = sorted(arguments, key=first.__ne__)
        made = {name: getattr(net, name)(*arguments[name]) for name in order}
        return [made["linear"], made["product"]]

    for ours, theirs in zip(outputs(is_shared=True), outputs(is_shared=False), strict=True):
        assert torch.equal(ours, theirs)


@every_way
def test_a_tensor_that_was_written_to_is_encoded_again(way):
    with encoded() as roles:
        model(way, between=lambda inner: inner.mul_(2))(inner())
    assert roles.count("act") == 2


@every_way
def test_a_batch_in_a_buffer_that_is_written_to_again_is_encoded_again(way):
    net, buffer = model(way), torch.ones(4, SIZE).numpy()
    batch = torch.from_numpy(buffer)
    with encoded() as roles:
        first = net.q(batch)
        buffer *= 10  # no version tells of it
        assert not torch.equal(net.q(batch), first)
    assert roles.count("act") == 2


@every_way
def test_threads_that_share_a_model_do_not_mix_their_tensors(way):
    net = model(way)
    batches = [leaf() * factor for factor in (1.0, 100.0)]
    wanted = [net(batch).detach() for batch in batches]

    def run(number):
        return all(torch.equal(net(batches[number] * 1.0), wanted[number]) for _ in range(100))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, (0, 1)))


@every_way
def test_an_equal_tensor_is_another_tensor(way):
    net = model(way)
    with encoded() as roles:
        outputs = [net.q(inner()) for _ in range(2)]
    assert roles.count("act") == len(outputs) == 2


@every_way
def test_layers_at_other_bits_encode_for_themselves(way):
    net = model(way)
    bc.set_precision(net, {"*": "w8a8e8", "k": "w8a4e8"})
    with encoded() as roles:
        net(inner())
    assert roles.count("act") == 2


@every_way
def test_evaluation_uses_the_range_of_each_layer(way):
    net = model(way)
    net(inner())
    net.q(3 * inner())  # now q's running range is another
    with encoded() as roles:
        net.eval()(inner())
    assert roles.count("act") == 3


@every_way
def test_codes_that_nobody_keeps_are_not_kept_alive(way):
    for mode in (torch.no_grad, torch.enable_grad):
        net, first = model(way), inner()
        with encoded() as roles:
            with mode():
                net.q(first)  # nobody keeps the output, and so nobody the codes
            kept = net.k(first), net.v(first)
        assert roles.count("act") == len(kept) == 2


@pytest.mark.parametrize("way", ["whole", "separate"])
@pytest.mark.parametrize(("precision", "codes"), [("w8a8e8", 4 * SIZE), ("w4a4e4", 2 * SIZE)])
def test_what_is_kept_for_the_backward_pass_is_kept_once(way, precision, codes):
    net, x = model(way, precision), inner()
    shared = saved_bytes(net, lambda m: m.q(x) + m.k(x)).num_bytes
    apart = saved_bytes(net, lambda m: m.q(x) + m.k(x.clone())).num_bytes
    assert apart - shared >= codes


@every_way
def test_the_cache_of_a_copied_model_is_empty(way):
    net = model(way)
    net(inner())
    assert net.q.shared.input_cache._last is not None
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.q.shared.input_cache._last is None
        assert other.q.shared is other.k.shared


@every_way
def test_inference_tensors_are_not_cached(way):
    net = model(way)
    with torch.inference_mode():
        net(torch.ones(4, SIZE))
    assert net.q.shared.input_cache._last is None
