"""Draws: one id for each row from its logits, by the row's own uniform numbers, and the id's log-probability.

What is drawn depends on the row's seed, the token's number and its logits only. It knows no model and no cache. Legend:
B rows, T sampled positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad

from gruppo.types import Request


@dataclass(frozen=True)
class Draw:
    """How each row is drawn: its temperature, top_p and one uniform number per token, all fixed before the first."""

    temperature_B: Tensor
    top_p_B: Tensor
    max_tokens_B: Tensor
    uniforms_BT: Tensor
    all_at_one: bool  # no temperature to divide by
    all_greedy: bool
    some_top_p: bool

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> Draw:
        samplings = [request.sampling for request in requests]
        num_steps = max(sampling.max_tokens for sampling in samplings)
        uniforms = []
        for request in requests:
            random = Random(request.seed)
            num_own = request.sampling.max_tokens
            uniforms.append([random.random() for _ in range(num_own)] + [0.0] * (num_steps - num_own))
        return cls(
            temperature_B=torch.tensor([sampling.temperature for sampling in samplings], device=device),
            top_p_B=torch.tensor([sampling.top_p for sampling in samplings], device=device),
            max_tokens_B=torch.tensor([sampling.max_tokens for sampling in samplings], device=device),
            uniforms_BT=torch.tensor(uniforms, dtype=torch.float64, device=device),
            all_at_one=all(sampling.temperature == 1 for sampling in samplings),
            all_greedy=all(sampling.temperature == 0 for sampling in samplings),
            some_top_p=any(sampling.top_p < 1 for sampling in samplings),
        )

    def step(self, logits_BV: Tensor, row_B: Tensor, at_B: Tensor) -> tuple[Tensor, Tensor]:
        """The ids drawn at the places `at_B` for the rows `row_B`, and their float32 log-probs."""
        logits_BV, greedy_B1 = logits_BV.float(), None
        if not self.all_at_one:
            temperature_B1 = self.temperature_B[row_B, None]
            greedy_B1 = temperature_B1 == 0
            logits_BV = logits_BV / temperature_B1.masked_fill(greedy_B1, 1.0)
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
        if self.all_greedy:
            ids_B1 = logits_BV.argmax(-1, keepdim=True)
        else:
            probs_BV = logprobs_BV.exp()
            if self.some_top_p:
                probs_BV = _truncate(probs_BV, self.top_p_B[row_B, None])
            ids_B1 = quantile(probs_BV, self.uniforms_BT[row_B, at_B, None])
            if greedy_B1 is not None:
                ids_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), ids_B1)
        return ids_B1[:, 0], logprobs_BV.gather(1, ids_B1)[:, 0]


def quantile(probs_BV: Tensor, share_B1: Tensor) -> Tensor:
    """[B, 1]: where each row's cumulative sum first exceeds that share of its total, which no probability of 0 does.

    In float64: float32 would round rare tokens away. First among sums of blocks, then within one: adding up all of a
    large vocabulary would take longer than the model's head.
    """
    blocks_BNS = pad(probs_BV, (0, -probs_BV.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
    ends_BN = blocks_BNS.sum(-1, dtype=torch.float64).cumsum(-1)
    target_B1 = share_B1 * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, target_B1, right=True).clamp(max=ends_BN.shape[1] - 1)
    starts_BN = pad(ends_BN, (1, -1))
    within_BS = blocks_BNS.gather(1, block_B1[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    rest_B1 = (target_B1 - starts_BN.gather(1, block_B1)).clamp(min=0)
    rest_B1 = torch.minimum(rest_B1, within_BS[:, -1:] * (1 - 2**-52))  # rounding must not lead past the block
    found_B1 = block_B1 * _BLOCK + torch.searchsorted(within_BS, rest_B1, right=True)
    return found_B1.clamp(max=probs_BV.shape[1] - 1)  # NaN is found nowhere


_BLOCK = 256


def _truncate(probs_BV: Tensor, top_p_B1: Tensor) -> Tensor:
    """Zero outside each row's smallest set of most likely tokens that holds top_p; rows with top_p 1 are untouched."""
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    outside_BV = (sorted_BV.cumsum(-1, dtype=torch.float64) - sorted_BV >= top_p_B1) & (top_p_B1 < 1)
    return probs_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), 0.0)
