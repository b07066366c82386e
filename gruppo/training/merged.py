"""Merged: a plain copy of the base that holds one policy's weights, its adapter added in; it samples and it learns.

An adapter beside its layer costs three times as many operations as the layer alone. Here both are one product, and the
gradients of the adapter's two factors follow from what went in and what comes back, without ever being computed beside
it: the same numbers up to rounding. Weights without an adapter are those of the base itself. It knows no optimizers.
Legend: N rows, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn import Linear, Module, Parameter

Factors = tuple[Parameter, Parameter, float]  # A [R, I], B [O, R], and what their product is multiplied by


class Merged:
    """`model` computes with the weights of the policy that it holds."""

    def __init__(self, base: Module) -> None:
        """Before the base gets its adapters."""
        self.model: Any = deepcopy(base, {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())})
        self._layers: list[tuple[Any, MergedLinear]] = []  # PEFT's, ours
        self._held: tuple[str | None, int] | None = None

    def pair(self, adapted: Module) -> bool:
        """Give each layer that got an adapter weights of its own. False if one is not linear: then it is of no use."""
        layers: dict[str, Any] = {name: m for name, m in adapted.named_modules() if isinstance(m, LoraLayer)}
        if not all(type(layer.get_base_layer()) is Linear for layer in layers.values()):
            return False
        for name, layer in layers.items():
            own = MergedLinear(layer.get_base_layer())
            self.model.set_submodule(name.removeprefix("base_model.model."), own)
            self._layers.append((layer, own))
        head = self.model.get_output_embeddings()
        if type(head) is Linear and head.weight.device.type == "cpu":
            (place,) = (name for name, module in self.model.named_modules() if module is head)
            self.model.set_submodule(place, _Wide(head))
        return True

    @torch.no_grad()
    def hold(self, policy: str | None, stamp: int) -> Any:
        """The model, with a policy's weights, or with None those of the base; `stamp` changes whenever these do."""
        if self._held != (policy, stamp):
            for layer, own in self._layers:
                base = layer.get_base_layer().weight
                own.policy = policy
                if policy is None:
                    own.factors = None
                    own.weight.copy_(base)
                else:
                    down, up, scale = layer.lora_A[policy].weight, layer.lora_B[policy].weight, layer.scaling[policy]
                    own.factors = down, up, scale
                    torch.addmm(base, up, down, alpha=scale, out=own.weight)
            self._held = policy, stamp
        return self.model


class MergedLinear(Module):
    """A linear layer whose weight is the base's with the product of two factors added; only these take gradients."""

    def __init__(self, base: Linear) -> None:
        super().__init__()
        self.weight = Parameter(base.weight.detach().clone(), requires_grad=False)
        self.bias = base.bias
        self.policy: str | None = None
        self.factors: Factors | None = None
        self.is_large = self.weight.numel() >= _LARGE

    def forward(self, inputs: Tensor) -> Tensor:
        if self.factors is not None and torch.is_grad_enabled():
            outputs: Tensor = _Product.apply(inputs, self.weight, self.bias, *self.factors)
            return outputs
        if self.is_large:
            return _product(inputs, self.weight, self.bias)
        return F.linear(inputs, self.weight, self.bias)


class _Wide(Module):
    """A linear layer of many outputs. Few rows are multiplied with some of its weights at a time, which the processor's
    own memory holds: up to twice as fast as with all of them."""

    def __init__(self, base: Linear) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled() or len(self.weight) <= 2 * _SOME:
            return F.linear(inputs, self.weight, self.bias)
        outputs = torch.cat([_product(inputs, some, None) for some in self.weight.split(_SOME)], dim=-1)
        return outputs if self.bias is None else outputs + self.bias


_SOME = 1024  # outputs


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs @ weight.T + bias, without a gradient.

    Of few rows and many weights it is computed the other way round, by which several threads share the weights: up to
    1.9 times as fast with two.
    """
    rows = inputs.flatten(0, -2)
    if len(rows) > _FEW or weight.numel() < _LARGE or torch.get_num_threads() == 1 or weight.device.type != "cpu":
        return F.linear(inputs, weight, bias)
    outputs = torch.mm(weight, rows.t()).t().contiguous().view(*inputs.shape[:-1], len(weight))
    return outputs if bias is None else outputs + bias


_FEW = 64  # rows
_LARGE = 2**18  # weights


class _Product(torch.autograd.Function):
    """inputs @ weight.T + bias, differentiated by the inputs and by the factors that the weight is made of."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight, down, up)
        ctx.scale = scale
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, down_RI, up_OR = ctx.saved_tensors
        (gradient,) = gradients
        inputs_NI, gradient_NO = inputs.flatten(0, -2), gradient.flatten(0, -2)
        of_down_RI = ctx.scale * ((gradient_NO @ up_OR).T @ inputs_NI)
        of_up_OR = ctx.scale * (gradient_NO.T @ (inputs_NI @ down_RI.T))
        of_inputs = gradient @ weight if ctx.needs_input_grad[0] else None
        return of_inputs, None, None, of_down_RI, of_up_OR, None
