"""clip_grad_norm_ and clip_grad_value_: gradients are ordinary float32."""

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from .training import inputs, mlp


def test_the_norm_is_what_it_was_clipped_to():
    model = mlp()
    model(100 * inputs()[0]).square().mean().backward()
    norm = clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert norm > 1
    clipped = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    torch.testing.assert_close(clipped, torch.tensor(1.0), rtol=1e-4, atol=0.0)


def test_values_are_clipped_and_foreach_is_the_same():
    grads = []
    for foreach in (True, False):
        model = mlp()
        model(100 * inputs()[0]).square().mean().backward()
        clip_grad_value_(model.parameters(), 0.1, foreach=foreach)
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert grads[0].abs().max() <= 0.1
    assert torch.equal(*grads)
