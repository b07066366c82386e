"""Log-probs of a batch's tokens, exact and lean: one pass of the decoder, then the head in pieces that fit.

Logits are computed only where a token is predicted and a few rows at a time; kept for the backward pass are rows as
long as hidden states, not as the vocabulary. It knows no policies.
Legend: B packs, S positions, K predicting positions of a pack, N tokens, U of them that differ, R of one piece, H
hidden size, V vocabulary, X either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from gruppo.algorithms.batching import Batch
from gruppo.tree_attention import TREES, attending

MAX_LOGITS = 2**23  # of one piece, rows x vocabulary: 32 MiB in float32

Head = Callable[[Tensor], Tensor]
Statistics = Callable[..., tuple[Tensor, ...]]


def token_logprobs(
    model: Any, batch: Batch, apart: bool, entropy: bool = False, max_logits: int = MAX_LOGITS
) -> tuple[Tensor, ...]:
    """Log-probs [N] float32 of the tokens under softmax(logits / temperature); with `entropy` also that of each
    token's distribution, [N] float32.

    `apart` is what `comes_apart` says of the model; without it the model's own logits of all K positions exist at once.
    At most `max_logits` are computed at a time; those of more are not kept for the backward pass, which computes them
    again if the head is trained: the same adapters must be active then.
    """
    size = model.config.get_text_config(decoder=True).vocab_size
    token_N = (batch.pack_N * batch.num_predictors + batch.predictor_N) * size + batch.label_N
    token_U, which_N = token_N.unique(return_inverse=True)  # attempts that went on alike are one
    place_U, label_U = token_U // size, token_U % size
    states_UX, head = (_hidden if apart else _logits)(model, batch, place_U)
    rows = states_UX, batch.temperatures_B[place_U // batch.num_predictors], label_U
    pieces = list(zip(*(each.split(max(1, max_logits // size)) for each in rows), strict=True))
    statistics: Statistics = partial(_statistics, head, entropy)
    if len(pieces) > 1 and states_UX.requires_grad:
        frozen = apart and not head(states_UX[:1].detach()).requires_grad
        statistics = partial(_differentiated if frozen else _recomputed, statistics)
    found = [statistics(*piece) for piece in pieces]
    return tuple(torch.cat(values)[which_N] for values in zip(*found, strict=True))


def comes_apart(model: Any) -> bool:
    """Whether a causal language model is a decoder and what it makes of each hidden state by itself.

    Tried on a few ids, so that no architecture is known by name: caps, scales and biases of logits are the model's own.
    """
    ids_BS = torch.arange(6, device=model.device).view(2, 3)
    inputs = {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS), "use_cache": False}
    with torch.no_grad():
        expected = model(**inputs).logits.flatten(0, 1).flip(0)
        try:
            output = model.get_decoder()(**inputs)
            found = _head(model, output, output.last_hidden_state.flatten(0, 1).flip(0))
        except Exception:  # a model of any make may raise anything here: then it does not come apart
            return False
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def _hidden(model: Any, batch: Batch, place_U: Tensor) -> tuple[Tensor, Head]:
    """The hidden states [U, H] at the places, and what makes logits of some of them."""
    with _attending(model, batch):
        output = model.get_decoder()(**_inputs(batch))
    states_UH = output.last_hidden_state[:, -batch.num_predictors :].flatten(0, 1)[place_U]
    output["last_hidden_state"] = None  # not to be kept whole
    return states_UH, partial(_head, model, output)


def _logits(model: Any, batch: Batch, place_U: Tensor) -> tuple[Tensor, Head]:
    """The logits [U, V] at the places, which need no head any more."""
    with _attending(model, batch):
        logits_BKV = model(**_inputs(batch), logits_to_keep=batch.num_predictors).logits
    return logits_BKV.flatten(0, 1)[place_U], lambda logits_RV: logits_RV


def _inputs(batch: Batch) -> dict[str, Any]:
    sees = {"attention_mask": batch.mask_BS} if batch.paths is None else {"tree_paths": batch.paths}
    return {"input_ids": batch.ids_BS, **sees, "position_ids": batch.positions_BS, "use_cache": False}


def _attending(model: Any, batch: Batch) -> AbstractContextManager[None]:
    return nullcontext() if batch.paths is None else attending(model.config, TREES)


def _statistics(
    head: Head, entropy: bool, states_RX: Tensor, temperature_R: Tensor, label_R: Tensor
) -> tuple[Tensor, ...]:
    """(log-probs [R]) or (log-probs [R], entropies [R]) of the tokens `label_R`, one predicted at each row."""
    logprobs_RV = (head(states_RX).float() / temperature_R[:, None]).log_softmax(-1)
    chosen_R = logprobs_RV.gather(1, label_R[:, None])[:, 0]
    return (chosen_R, -(logprobs_RV.exp() * logprobs_RV).sum(-1)) if entropy else (chosen_R,)


def _differentiated(statistics: Statistics, states_RH: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """As `statistics`, but only the gradient of each number by its own hidden state is kept, [R, H], computed here."""
    own_RH = states_RH.detach().requires_grad_()
    values = statistics(own_RH, *rows)
    gradients = [torch.autograd.grad(value_R.sum(), own_RH, retain_graph=True)[0] for value_R in values]
    nothing_RH = states_RH - own_RH.detach()  # but it carries the gradient
    pairs = zip(values, gradients, strict=True)
    return tuple(value_R.detach() + (nothing_RH * gradient_RH).sum(-1) for value_R, gradient_RH in pairs)


def _recomputed(statistics: Statistics, *rows: Tensor) -> tuple[Tensor, ...]:
    """As `statistics`, but nothing of its insides is kept: the backward pass computes them again."""
    return checkpoint(statistics, *rows, use_reentrant=False, preserve_rng_state=False)


def _head(model: Any, output: ModelOutput, states_RH: Tensor) -> Tensor:
    """Logits [R, V] of hidden states: the model's own forward, its decoder's work being done."""
    done = type(output)(**{**output, "last_hidden_state": states_RH[None]})
    with _answering(model.get_decoder(), done):
        return model(input_ids=states_RH.new_zeros(1, len(states_RH), dtype=torch.long), use_cache=False).logits[0]


@contextmanager
def _answering(decoder: torch.nn.Module, output: ModelOutput) -> Iterator[None]:
    """Inside, the decoder answers every call with `output`."""
    own = vars(decoder).pop("forward", None)  # the class's unless something has wrapped it
    decoder.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        del decoder.forward
        if own is not None:
            decoder.forward = own
