"""Layers that read the same tensor encode it once, and only then."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.quantizers import SBM

SIZE = 8


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


@pytest.fixture
def encoded(monkeypatch):
    """The roles that were encoded, in order."""
    roles, encode = [], SBM.encode

    def spy(self, role, *args, **kwargs):
        roles.append(role)
        return encode(self, role, *args, **kwargs)

    monkeypatch.setattr(SBM, "encode", spy)
    return roles


def model(kernel="native", precision="w8a8e8", **kwargs):
    torch.manual_seed(0)
    net = bc.quantize_model(Projections(**kwargs), kernel=kernel)
    bc.set_precision(net, precision)
    return net


def leaf():
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def inner():
    """The result of an operation, as between layers."""
    return leaf() * 1.0


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_three_layers_on_one_tensor_encode_it_once(encoded, kernel):
    model(kernel)(inner())
    assert encoded.count("act") == 1


def test_the_result_is_that_of_three_copies():
    for kernel in ("simulate", "native"):
        net = model(kernel)
        first, copies = leaf(), [leaf() for _ in range(3)]
        net(first * 1.0).sum().backward()
        other = model(kernel)
        (other.q(copies[0]) + other.k(copies[1]) * other.v(copies[2])).sum().backward()
        for one, two in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.equal(one.grad, two.grad)
        torch.testing.assert_close(first.grad, sum(c.grad for c in copies))
        for one, two in zip(net.buffers(), other.buffers(), strict=True):
            assert torch.equal(one, two)  # every layer has observed its input


def test_a_tensor_that_was_written_to_is_encoded_again(encoded):
    model(between=lambda inner: inner.mul_(2))(inner())
    assert encoded.count("act") == 2


def test_a_batch_in_a_buffer_that_is_written_to_again_is_encoded_again(encoded):
    net, buffer = model(), torch.ones(4, SIZE).numpy()
    batch = torch.from_numpy(buffer)
    first = net.q(batch)
    buffer *= 10  # no version tells of it
    assert not torch.equal(net.q(batch), first)
    assert encoded.count("act") == 2


def test_threads_that_share_a_model_do_not_mix_their_tensors():
    net = model("simulate")
    batches = [leaf() * factor for factor in (1.0, 100.0)]
    wanted = [net(batch).detach() for batch in batches]

    def run(number):
        return all(torch.equal(net(batches[number] * 1.0), wanted[number]) for _ in range(100))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, (0, 1)))


def test_an_equal_tensor_is_another_tensor(encoded):
    net = model()
    for _ in range(2):
        net.q(inner())
    assert encoded.count("act") == 2


def test_layers_at_other_bits_encode_for_themselves(encoded):
    net = model()
    bc.set_precision(net, {"*": "w8a8e8", "k": "w8a4e8"})
    net(inner())
    assert encoded.count("act") == 2


def test_evaluation_uses_the_range_of_each_layer(encoded):
    net = model()
    net(inner())
    net.q(3 * inner())  # now q's running range is another
    encoded.clear()
    net.eval()(inner())
    assert encoded.count("act") == 3


def test_codes_that_nobody_keeps_are_not_kept_alive():
    net = model()
    first = inner()
    with torch.no_grad():
        net.q(first)
    key = (net.q.settings.quantizer, 8, True)
    assert net.q.shared.input_cache.codes_of(first, key) is None


def test_what_is_kept_for_the_backward_pass_is_kept_once():
    for precision, codes in (("w8a8e8", 4 * SIZE), ("w4a4e4", 2 * SIZE)):
        net, x = model(precision=precision), inner()
        shared = saved_bytes(net, lambda m: m.q(x) + m.k(x)).num_bytes  # noqa: B023
        apart = saved_bytes(net, lambda m: m.q(x) + m.k(x.clone())).num_bytes  # noqa: B023
        assert apart - shared >= codes


def test_the_cache_of_a_copied_model_is_empty():
    net = model()
    net(first := inner())
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.q.shared.input_cache.range_of(first, net.q.settings.quantizer) is None
        assert other.q.shared is other.k.shared


def test_inference_tensors_are_not_cached():
    net = model()
    with torch.inference_mode():
        net(torch.ones(4, SIZE))
    assert net.q.shared.input_cache._last is None
