"""Ours against TRL's GRPOTrainer, executed: loss and gradient of random ragged batches agree. Skipped without trl.

TRL's loss runs on a stand-in for its trainer that holds just what the loss reads; the log-probs come from us instead of
a model. What stands under TRL's mask is noise there and does not exist here.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gruppo.algorithms.aggregations import AGGREGATIONS, AggregationSettings, RowShape
from gruppo.algorithms.corrections import CorrectionSettings, correction_weights
from gruppo.algorithms.losses import LossSettings, ObjectiveSettings, high_entropy_tokens, objective
from gruppo.algorithms.ratios import Tokens

pytestmark = pytest.mark.slow  # importing trl takes ten seconds

BATCHES = 20  # of each of ten algorithms
MAX_LENGTH = 7.0  # TRL's max_completion_length, the constant of dr_grpo


@dataclass(frozen=True)
class Case:
    """One algorithm in both languages."""

    trl: dict[str, Any]  # what differs from TRL's defaults below
    aggregation: str = "token_mean"
    ours: ObjectiveSettings = ObjectiveSettings()
    entropy_share: float = 1.0


SEQUENCE = ObjectiveSettings(constants=LossSettings(ratio_level="sequence", clip_low=3e-4, clip_high=4e-4))
LUSPO = ObjectiveSettings(constants=LossSettings(ratio_level="sequence", clip_low=2e-3, clip_high=2.5e-3))
CISPO = ObjectiveSettings("cispo", LossSettings(cispo_cap=1.2))
GSPO = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
EVERYTHING = ObjectiveSettings(
    constants=LossSettings(ratio_cap=1.4),
    correction="sequence_mask",
    bounds=CorrectionSettings(high=3.0, off_policy_mask=0.05),
    kl_estimator="k3_ratio",
    kl_coefficient=0.04,
)
CASES = {
    "grpo": Case({"loss_type": "grpo"}, "seq_mean_token_mean"),
    "bnpo": Case({"loss_type": "bnpo"}),
    "dapo": Case({"loss_type": "dapo"}),
    "dr_grpo": Case({"loss_type": "dr_grpo"}, "token_sum_norm"),
    "gspo": Case({"loss_type": "grpo", **GSPO}, "seq_mean_token_mean", SEQUENCE),
    "cispo": Case({"loss_type": "cispo", "epsilon_high": 1.2}, ours=CISPO),
    "sapo": Case({"loss_type": "sapo"}, "seq_mean_token_mean", ObjectiveSettings("sapo")),
    "luspo": Case(
        {"loss_type": "luspo", **GSPO, "epsilon_low": 2e-3, "epsilon_high": 2.5e-3}, "seq_mean_token_sum", LUSPO
    ),
    "vespo": Case({"loss_type": "vespo"}, ours=ObjectiveSettings("vespo")),
    "everything": Case(
        {
            "loss_type": "dapo", "delta": 1.4, "beta": 0.04, "off_policy_mask_threshold": 0.05,
            "top_entropy_quantile": 0.5, "use_vllm": True,
        },
        ours=EVERYTHING,
        entropy_share=0.5,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trainer_class() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("trl", reason="parity with TRL needs trl: pip install 'trl>=1.16'")
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer


def trainer_of(trainer_class: Any, changes: dict[str, Any], logprobs_BT: Tensor, entropy_BT: Tensor) -> SimpleNamespace:
    """All that GRPOTrainer._compute_loss reads of a trainer, for one process and one microbatch."""
    args = {
        "delta": None, "use_bias_correction_kl": True, "steps_per_generation": 1, "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
    }  # fmt: skip
    found: dict[str, Any] = {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "beta": 0.0,
        "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.28, "loss_type": "dapo",
        "use_vllm": False, "vllm_importance_sampling_correction": True, "current_gradient_accumulation_steps": 1,
        "max_completion_length": MAX_LENGTH, "_entropy_bonus_enabled": False, "_metrics": {"train": defaultdict(list)},
    }  # fmt: skip
    accelerator = SimpleNamespace(
        num_processes=1,
        gather=lambda tensor: tensor,
        reduce=lambda tensor, reduction: tensor,
        pad_across_processes=lambda tensor, dim, pad_index: tensor,
    )
    trainer = SimpleNamespace(
        **found | {name: value for name, value in changes.items() if name not in args},
        args=SimpleNamespace(**args | {name: value for name, value in changes.items() if name in args}),
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        get_off_policy_mask=trainer_class.get_off_policy_mask,
        get_gamma_weights=trainer_class.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logprobs_BT, entropy_BT, None),
    )
    trainer.get_high_entropy_mask = lambda *args: trainer_class.get_high_entropy_mask(trainer, *args)
    return trainer


def batch_of(seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """(B rows of up to T tokens, noise under the mask included, as named tensors; the mask)."""
    draw = torch.Generator().manual_seed(seed)
    num_rows, width = 2 + seed % 5, 3 + seed % 5
    lengths_B = torch.randint(1, width + 1, (num_rows, 1), generator=draw)
    mask_BT = torch.arange(width) < lengths_B
    names = ("new", "old", "sampled", "reference", "advantages", "entropy")
    batch = dict(zip(names, torch.randn(len(names), num_rows, width, generator=draw, dtype=torch.float64), strict=True))
    batch["new"] -= 2
    for name, other, spread in (("old", "new", 0.3), ("sampled", "old", 0.3), ("reference", "new", 0.3)):
        batch[name] = batch[other] + spread * batch[name]
    batch["advantages"] = batch["advantages"][:, :1].expand(-1, width)
    batch["entropy"] = batch["entropy"].abs().float().double()  # TRL compares them in float32
    return batch, mask_BT


def ours(case: Case, batch: dict[str, Tensor], mask_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, gradient [B, T], correction weights [B, T])."""
    new_BT = batch["new"].clone().requires_grad_()
    flat = {name: values_BT[mask_BT] for name, values_BT in batch.items()}
    lengths = mask_BT.sum(-1)
    tokens = Tokens(
        old_N=flat["old"],
        advantages_N=flat["advantages"],
        sequence_N=torch.arange(len(lengths)).repeat_interleave(lengths),
        sampled_N=flat["sampled"],
        reference_N=flat["reference"],
        chosen_N=high_entropy_tokens(flat["entropy"], case.entropy_share),
    )
    rows = [RowShape(length, row, row) for row, length in enumerate(lengths.tolist())]
    weights = AGGREGATIONS[case.aggregation](rows, AggregationSettings(MAX_LENGTH))
    losses_N, _ = objective(new_BT[mask_BT], tokens, case.ours)
    loss = (losses_N * torch.tensor(weights, dtype=torch.float64)[tokens.sequence_N]).sum()
    (gradient_BT,) = torch.autograd.grad(loss, new_BT)
    weights_N, _ = correction_weights(case.ours.correction, tokens, case.ours.bounds)
    return loss.detach(), gradient_BT, torch.zeros_like(gradient_BT).masked_scatter(mask_BT, weights_N)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_trl(trainer_class, name) -> None:
    case, num_live = CASES[name], 0
    for seed in range(BATCHES):
        batch, mask_BT = batch_of(seed)
        loss, gradient_BT, correction_BT = ours(case, batch, mask_BT)
        new_BT = batch["new"].clone().requires_grad_()
        ids = torch.zeros(mask_BT.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids,
            "completion_mask": mask_BT.to(torch.float64), "advantages": batch["advantages"][:, 0],
            "old_per_token_logps": batch["old"], "sampling_per_token_logps": batch["sampled"],
            "ref_per_token_logps": batch["reference"], "num_items_in_batch": mask_BT.sum(),
        }  # fmt: skip
        if case.trl.get("use_vllm"):
            inputs["importance_sampling_ratio"] = correction_BT  # TRL computes it before the loss
        trainer = trainer_of(trainer_class, case.trl, new_BT, batch["entropy"])
        theirs = trainer_class._compute_loss(trainer, None, inputs)
        (expected_BT,) = torch.autograd.grad(theirs, new_BT)
        assert math.isclose(loss.item(), theirs.item(), rel_tol=1e-5, abs_tol=1e-8), (seed, loss, theirs)
        assert torch.allclose(gradient_BT, expected_BT, rtol=1e-5, atol=1e-8), seed
        num_live += bool(gradient_BT.any())
    assert num_live > BATCHES // 3  # GSPO's narrow bounds silence whole batches
