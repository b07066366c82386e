"""The learner: one base model, trainable weights per policy, their optimizers, saving and loading.

A policy is a LoRA adapter on the frozen base (default) or the whole model (`full = true`). It computes log-probs and
takes optimizer steps; it knows no rewards, groups or algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gruppo.algorithms.batching import Batch
from gruppo.errors import CheckpointError, ConfigError, boundary
from gruppo.replicas import Replicas
from gruppo.teams.base import seed_of
from gruppo.training.logprobs import comes_apart, token_logprobs
from gruppo.training.merged import Merged
from gruppo.training.model import (
    ModelConfig,
    PolicyConfig,
    check_policies,
    digest_of,
    hold_still,
    load_base,
    with_adapter,
)
from gruppo.training.shares import add_up, apart, shared
from gruppo.tree_attention import computes_trees

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.95)),
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


class Learner:
    """Holds the base, the policies and their optimizers. `versions` counts each policy's optimizer steps."""

    def __init__(self, model: ModelConfig, policies: Mapping[str, PolicyConfig], seed: int) -> None:
        if model.threads or model.processes > 1:
            torch.set_num_threads(model.threads or 1)
        self.config, self.policies = model, dict(policies)
        with boundary(ConfigError, f"model.device = {model.device!r}"):
            self.device = torch.device(model.device)
        check_policies(model, policies)
        self.tokenizer, base = load_base(model)
        self.pad_id = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        self.base_fingerprint = digest_of(base.state_dict())
        full = [name for name, policy in policies.items() if policy.full]
        self._copies: dict[str | None, Any] = {None: deepcopy(base).requires_grad_(False)} if full else {}
        # Not in bfloat16 nor quantized, where the merged weight would round the adapter's small update away.
        merges = not full and model.dtype == "float32" and model.quantization == "none"
        merged = Merged(base) if merges else None
        self.model: Any = base if full else self._with_adapters(base, seed)
        self._merged = merged if merged and merged.pair(self.model) else None
        hold_still(self.model, model.quantization)
        self.versions = dict.fromkeys(policies, 0)
        self._parameters: dict[str, dict[str, torch.nn.Parameter]] = {}
        self.can_share = computes_trees(self.model)
        self.comes_apart = comes_apart(self.model)
        self._references: dict[str, str] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        # How often a policy's weights have changed here, whatever changed them: unlike a version it never goes back.
        self._changes = dict.fromkeys(policies, 0)
        self.replicas = Replicas(model.processes, lambda: (self._changes, self.versions), self._adopt)
        self.replicas.add(self)
        trained = {policy: list(self.parameters(policy).values()) for policy in policies}
        self.rooms = {policy: shared(own, model.processes) for policy, own in trained.items()}

    def _with_adapters(self, base: torch.nn.Module, seed: int) -> Any:
        base.requires_grad_(False)
        model: Any = base
        for name, policy in self.policies.items():
            torch.manual_seed(seed_of(seed, "adapter", name))
            model = with_adapter(model, name, policy)
        return model

    # ---- computing -----------------------------------------------------------------------------------------------

    @contextmanager
    def activate(self, policy: str | None) -> Iterator[Any]:
        """The model that computes with a policy's weights, or with None the frozen base, inside the block."""
        if policy in self._copies:
            yield self._copies[policy]
        elif not isinstance(self.model, PeftModel):
            yield self.model
        elif policy is None:
            with self.model.disable_adapter():
                yield self.model
        else:
            # Switching decides what takes gradients: after a reference the policy itself must be active again.
            before = self.model.active_adapter
            if before != policy:
                self.model.set_adapter(policy)
            yield self.model
            if before != policy and policy in self._references.values():
                self.model.set_adapter(before)

    @contextmanager
    def sampling(self, policy: str | None) -> Iterator[Any]:
        """As `activate`, for sampling only: a plain model with the adapter's update added in, where it can be."""
        if self._merged is None:
            with self.activate(policy) as model:
                yield model
            return
        model = self._merged.hold(policy, self.changes(policy))
        with torch.inference_mode():  # a tenth faster; only here, since what it creates can never be trained through
            yield model

    @contextmanager
    def learning(self, policy: str | None) -> Iterator[Any]:
        """As `activate`, for log-probs: of a policy that learns, merged too, so that they are what it sampled with.

        Until what was computed has been back-propagated, nothing else may be merged; a reference is not.
        """
        with self.activate(policy) as model:  # also where the merged one computes: this decides which adapter learns
            merged = self._merged if policy in self.policies else None
            yield merged.hold(policy, self.changes(policy)) if merged else model

    def version(self, policy: str | None) -> int:
        """How many optimizer steps a policy has taken; 0 for the base."""
        return 0 if policy is None else self.versions[policy]

    def changes(self, policy: str | None) -> int:
        """A number that grows whenever a policy's weights change, whatever changes them."""
        return 0 if policy is None else self._changes[policy]

    def logprobs(self, policy: str | None, batch: Batch) -> Tensor:
        """Log-probs [N] float32 of the actions' tokens under softmax(logits / temperature)."""
        with self.learning(policy) as model:
            return token_logprobs(model, batch, self.comes_apart)[0]

    def logprobs_and_entropy(self, policy: str | None, batch: Batch) -> tuple[Tensor, Tensor]:
        """As `logprobs`, and for each token the entropy [N] of the distribution it was drawn from."""
        with self.learning(policy) as model:
            logprobs_N, entropy_N = token_logprobs(model, batch, self.comes_apart, entropy=True)
        return logprobs_N, entropy_N

    def freeze_reference(self, policy: str) -> None:
        """Remember the policy as it is now; `reference_logprobs` uses this copy from here on."""
        name = self._references[policy] = f"{policy}-reference"
        if self.policies[policy].full:
            self.replicas.stop()
            self._copies[name] = deepcopy(self.model).requires_grad_(False)
            return
        if name not in self.model.peft_config:
            self.replicas.stop()  # they have no such adapter
            self.model.add_adapter(name, self.model.peft_config[policy])
        set_peft_model_state_dict(self.model, self._weights(policy), adapter_name=name)

    def reference_logprobs(self, policy: str, batch: Batch) -> Tensor:
        """As `logprobs`, of the frozen copy if there is one, else of the base. No gradient."""
        with torch.no_grad():
            return self.logprobs(self._references.get(policy), batch)

    def fingerprint(self, policy: str | None) -> str:
        """SHA-256 of a policy's weights, or with None of the base's as they are now."""
        if policy is not None:
            return digest_of(self.parameters(policy))
        base = self._copies.get(None, self.model)
        plain = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in base.state_dict().items()
            if ".lora_" not in name
        }
        return digest_of({name.removeprefix("base_model.model."): tensor for name, tensor in plain.items()})

    # ---- learning ------------------------------------------------------------------------------------------------

    def parameters(self, policy: str) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters of a policy by name."""
        if policy not in self._parameters:  # looked up once: they are the same objects as long as the model lives
            named, own = dict(self.model.named_parameters()), f".{policy}.weight"
            if not self.policies[policy].full:
                named = {name: p for name, p in named.items() if ".lora_" in name and name.endswith(own)}
            self._parameters[policy] = named
        return self._parameters[policy]

    def start_optimizers(self, learning_rates: Mapping[str, float]) -> None:
        """A fresh optimizer for each policy named, of the kind and with the weight decay that its config says."""
        self._optimizers = {}
        for policy, rate in learning_rates.items():
            own, weights = self.policies[policy], self.parameters(policy).values()
            self._optimizers[policy] = OPTIMIZERS[own.optimizer](weights, lr=rate, weight_decay=own.weight_decay)
        self._rates = dict(learning_rates)

    def step(self, policy: str, scale: float, max_grad_norm: float) -> float:
        """One optimizer step at `scale` times the learning rate; returns the gradient norm before clipping.

        A gradient that is not finite changes nothing and is returned as it is.
        """
        optimizer, parameters = self._optimizers[policy], list(self.parameters(policy).values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm).item()
        if norm == norm and norm != float("inf"):
            optimizer.param_groups[0]["lr"] = self._rates[policy] * scale
            optimizer.step()
            self.versions[policy] += 1
            self._changed(policy)
        optimizer.zero_grad(set_to_none=True)
        return norm

    def snapshot(self) -> dict[str, Any]:
        """All trainable weights, optimizer states and versions as they are now, for `restore`."""
        weights = {name: [p.detach().clone() for p in self.parameters(name).values()] for name in self.policies}
        states = {name: deepcopy(optimizer.state_dict()) for name, optimizer in self._optimizers.items()}
        return {"weights": weights, "states": states, "versions": dict(self.versions)}

    @torch.no_grad()
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go back to a snapshot, bit for bit."""
        for name, tensors in snapshot["weights"].items():
            for parameter, tensor in zip(self.parameters(name).values(), tensors, strict=True):
                parameter.copy_(tensor)
        for name, state in snapshot["states"].items():
            self._optimizers[name].load_state_dict(state)
        self.versions.update(snapshot["versions"])
        self._changed(*self.policies)

    # ---- side by side --------------------------------------------------------------------------------------------

    def side_by_side(self, job: Callable[..., Any], policy: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`job(self, policy, *share)` for each share, in as many processes; their gradients add up here, in order."""
        results = self.replicas.map(apart, self, [(job, policy, number, *share) for number, share in enumerate(shares)])
        add_up(self.parameters(policy).values(), self.rooms.get(policy, [])[: len(shares) - 1])
        return results

    def _adopt(self, state: tuple[dict[str, int], dict[str, int]]) -> None:
        changes, versions = state
        self._changes.update(changes)
        self.versions.update(versions)

    def _changed(self, *policies: str) -> None:
        for policy in policies:
            self._changes[policy] += 1

    # ---- saving --------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Adapters in PEFT's format (one folder each, or the whole model), references and optimizer states."""
        for policy, config in self.policies.items():
            target = folder / "policies" / policy
            target.mkdir(parents=True)
            if config.full:
                self.model.save_pretrained(target)
            else:
                self._save_adapter(policy, target)
            if policy in self._references:
                self._save_reference(policy, folder / f"reference-{policy}")
            if policy in self._optimizers:
                save_file(self._optimizer_tensors(policy), folder / f"optimizer-{policy}.safetensors")

    def load(self, folder: Path, versions: Mapping[str, int], only_policies: bool = False) -> None:
        """What `save` wrote, into policies of the same shape. Raises CheckpointError before any weight is changed.

        `only_policies` leaves out references and optimizers: a start for a training of its own.
        """
        found = {policy: self._read(folder / "policies" / policy, policy) for policy in self.policies}
        for policy, tensors in found.items():
            if self.policies[policy].full:
                self.model.load_state_dict(tensors, strict=False)
            else:
                set_peft_model_state_dict(self.model, tensors, adapter_name=policy)
            if only_policies:
                continue
            if (reference := folder / f"reference-{policy}").exists():
                self._load_reference(policy, reference)
            optimizer = folder / f"optimizer-{policy}.safetensors"
            if policy in self._optimizers and optimizer.exists():
                self._load_optimizer(policy, load_file(optimizer))
        self.versions.update(versions)
        self._changed(*self.policies)

    def _weights(self, adapter: str) -> dict[str, Tensor]:
        found = get_peft_model_state_dict(self.model, adapter_name=adapter, save_embedding_layers=False)
        return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}

    def _save_adapter(self, policy: str, target: Path) -> None:
        config = deepcopy(self.model.peft_config[policy])
        config.base_model_name_or_path, config.inference_mode = self.config.base, True
        config.save_pretrained(target)
        save_file(self._weights(policy), target / "adapter_model.safetensors")

    def _save_reference(self, policy: str, target: Path) -> None:
        name = self._references[policy]
        if name in self._copies:
            self._copies[name].save_pretrained(target)
        else:
            target.mkdir()
            save_file(self._weights(name), target / "model.safetensors")

    def _load_reference(self, policy: str, source: Path) -> None:
        self.freeze_reference(policy)
        name, tensors = self._references[policy], load_file(source / "model.safetensors")
        if name in self._copies:
            self._copies[name].load_state_dict(tensors, strict=False)
        else:
            set_peft_model_state_dict(self.model, tensors, adapter_name=name)

    def _read(self, folder: Path, policy: str) -> dict[str, Tensor]:
        full = self.policies[policy].full
        file = folder / ("model.safetensors" if full else "adapter_model.safetensors")
        if not file.exists():
            raise CheckpointError(
                f"{folder}: no {file.name} for policy {policy!r}; is [policies] the same as in that run?"
            )
        try:
            saved = load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: can't be read: {error}") from error
        current = self.model.state_dict() if full else self._weights(policy)
        odd = [name for name in saved if name not in current] + [
            name for name in current if name not in saved and not full
        ]
        if odd or not saved:
            raise CheckpointError(
                f"{file}: does not fit policy {policy!r}: {len(odd)} other tensor names, such as {odd[:2]}"
            )
        for name, tensor in saved.items():
            if tensor.shape != current[name].shape:
                shapes = f"{tuple(tensor.shape)} in the checkpoint, {tuple(current[name].shape)} here"
                raise CheckpointError(f"{file}: policy {policy!r} has another shape: {name} is {shapes}")
        return saved

    def _optimizer_tensors(self, policy: str) -> dict[str, Tensor]:
        state = self._optimizers[policy].state
        return {
            f"{name}|{key}": value.detach().clone().contiguous()
            for name, parameter in self.parameters(policy).items()
            for key, value in state.get(parameter, {}).items()
        }

    def _load_optimizer(self, policy: str, tensors: Mapping[str, Tensor]) -> None:
        state = self._optimizers[policy].state
        for name, parameter in self.parameters(policy).items():
            keys = [key for key in tensors if key.startswith(f"{name}|")]
            if keys:
                state[parameter] = {key.rpartition("|")[2]: tensors[key].to(parameter.device) for key in keys}
