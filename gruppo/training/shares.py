"""Shares: weights in memory that forked processes have in common, and gradients computed in several of them.

A share's gradients are kept apart and added in the order of the shares, so that the sum does not depend on which
process computed which, nor on when.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def shared(parameters: Sequence[Parameter], processes: int) -> list[list[Tensor]]:
    """Move weights to where forks see them change; returns room for the gradients of each process but the first."""
    if processes == 1:
        return []
    for parameter, place in zip(parameters, _shared_like(parameters), strict=True):
        parameter.data = place.copy_(parameter.data)
    return [_shared_like(parameters) for _ in range(processes - 1)]


def apart(learner: Any, job: Callable[..., Any], policy: str, number: int, *share: Any) -> Any:
    """`job(learner, policy, *share)` of a Learner; its gradients end in the share's room, those of share 0 in place."""
    if number == 0:
        return job(learner, policy, *share)
    parameters = list(learner.parameters(policy).values())
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    result = job(learner, policy, *share)
    for parameter, room, grad in zip(parameters, learner.rooms[policy][number - 1], before, strict=True):
        room.zero_() if parameter.grad is None else room.copy_(parameter.grad)
        parameter.grad = grad
    return result


def add_up(parameters: Iterable[Parameter], rooms: Sequence[Sequence[Tensor]]) -> None:
    """Add what the shares after the first left in their rooms."""
    for parameter, *added in zip(parameters, *rooms, strict=True):
        for gradient in added:
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)


def _shared_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Zeros of the same shapes and dtypes, in one anonymous block that this process has in common with its forks."""
    starts = list(itertools.accumulate((-(-tensor.nbytes // 64) * 64 for tensor in tensors), initial=0))
    block = torch.frombuffer(mmap.mmap(-1, max(1, starts[-1])), dtype=torch.uint8)
    return [
        block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=False)
    ]
