"""Mixed precision for one trial: autocast, a loss scaler of its own, and what to do about non-finite losses."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from vrampool.errors import InputError
from vrampool.training import counting, runtime

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
OnNonfinite = Literal["prune", "fail", "skip", "ignore"]

DTYPES = ("auto", "bfloat16", "float16", "float32")
POLICIES = ("prune", "fail", "skip", "ignore")


def mixed_precision(
    dtype: Dtype = "auto",
    *,
    device: str | torch.device | None = None,
    on_nonfinite: OnNonfinite = "prune",
    max_skipped: int = 25,
    init_scale: float = 65536.0,
) -> MixedPrecision:
    """Return mixed precision for this trial. Make a new one in each trial: a scaler carries the last trial's scale.

    Args:
        dtype: "auto": bfloat16 on cards that compute it, else float16; on the CPU float32, which is plain training.
            A dtype named here is used on the CPU too.
        device: Where the model is; None: the pool's device, else "cuda" if there is one.
        on_nonfinite: What `step` does when a loss since the last step was not finite: "prune" the trial, "fail" it with
            FloatingPointError, "skip" the step, or "ignore" it. All but "ignore" read one flag from the device a step.
        max_skipped: So many skipped steps in a row end the trial as if by "fail" ("prune": by pruning it).
        init_scale: First loss scale of float16.

    Raises:
        InputError: unknown dtype or policy.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    if on_nonfinite not in POLICIES:
        raise InputError(f"on_nonfinite {on_nonfinite!r} is unknown: use one of {', '.join(POLICIES)}")
    device_type = _device_type(device)
    chosen = _choose(device_type) if dtype == "auto" else dtype
    return MixedPrecision(chosen, device_type, on_nonfinite, max_skipped, init_scale)


def _device_type(device: str | torch.device | None) -> str:
    import torch

    if device is not None:
        return torch.device(device).type
    facts = runtime.current()
    if facts is not None:
        return facts.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _choose(device_type: str) -> str:
    import torch

    if device_type != "cuda":
        return "float32"
    # Compute capability, and not `is_bf16_supported`, which also counts cards that only emulate it.
    return "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16"


class MixedPrecision:
    """Autocast, scaled backward and the optimizer's step of one trial. Made by `mixed_precision`.

    Attributes:
        dtype: What autocast computes in: "bfloat16", "float16", or "float32" for none.
        steps: Optimizer steps taken.
        skipped_steps: Steps left out, by the scaler (gradients overflowed) or by `on_nonfinite="skip"`.
        grad_norm: Norm of the gradients before clipping at the last step, as a tensor; None without `clip_norm`.
    """

    def __init__(
        self, dtype: str, device_type: str, on_nonfinite: str, max_skipped: int, init_scale: float = 65536.0
    ) -> None:
        import torch

        counting.watch_optimizers()
        self.dtype = dtype
        self.device_type = device_type
        self.steps = 0
        self.skipped_steps = 0
        self.grad_norm: torch.Tensor | None = None
        self._on_nonfinite = on_nonfinite
        self._max_skipped = max_skipped
        self._skipped_in_a_row = 0
        self._finite: torch.Tensor | None = None  # of all losses since the last step; on the device, read once a step
        # bfloat16 has float32's range and needs no scaling.
        self.scaler = torch.amp.GradScaler(device_type, init_scale=init_scale) if dtype == "float16" else None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the forward pass and the loss; it does nothing for float32."""
        import torch

        if self.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=getattr(torch, self.dtype))

    def backward(self, loss: torch.Tensor, *, factor: float = 1.0) -> None:
        """Backpropagate `loss * factor`, scaled as the dtype needs. Call it outside of `autocast`."""
        import torch

        if self._on_nonfinite != "ignore":
            finite = torch.isfinite(loss.detach()).all()
            self._finite = finite if self._finite is None else self._finite & finite
        if factor != 1.0:
            loss = loss * factor
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]

    def step(
        self,
        *optimizers: torch.optim.Optimizer,
        rescale: float = 1.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
    ) -> bool:
        """Take one step with the gradients as they are; return whether it was taken. Gradients are then dropped.

        Args:
            optimizers: All that step now; the loss scale is updated once for them.
            rescale: Gradients are multiplied by it first.
            clip_norm: Largest norm of all gradients together.
            clip_value: Largest absolute value of each gradient, applied after `clip_norm`.

        Raises:
            optuna.TrialPruned: a loss was not finite and the policy is "prune".
            FloatingPointError: the same with "fail", or `max_skipped` steps were skipped in a row.
        """
        finite, self._finite = self._finite, None
        try:
            if finite is not None and not bool(finite.item()):
                return self._nonfinite("a loss")
            parameters = [parameter for parameter in _parameters(optimizers) if parameter.grad is not None]
            if self.scaler is not None:
                for optimizer in optimizers:
                    self.scaler.unscale_(optimizer)
            if rescale != 1.0:
                for parameter in parameters:
                    _grad(parameter).mul_(rescale)
            if not self._clip(parameters, clip_norm, clip_value):
                return self._nonfinite("the gradient's norm")
            return self._take(optimizers)
        finally:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)

    def record(self, trial: Any) -> None:
        """Keep dtype, steps and skipped steps as user attributes of the trial."""
        trial.set_user_attr("training:dtype", self.dtype)
        trial.set_user_attr("training:steps", self.steps)
        trial.set_user_attr("training:skipped_steps", self.skipped_steps)

    def _clip(self, parameters: list[torch.Tensor], clip_norm: float | None, clip_value: float | None) -> bool:
        """Clip in place; False if the norm shows that the gradients are not finite and nobody else would see it."""
        import torch

        if clip_norm is not None:
            self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
            # A scaler sees gradients that overflowed by itself, and skips.
            if self.scaler is None and self._on_nonfinite != "ignore" and not math.isfinite(self.grad_norm.item()):
                return False
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, clip_value)
        return True

    def _take(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        if self.scaler is None:
            for optimizer in optimizers:
                optimizer.step()
        else:
            before = self.scaler.get_scale()
            for optimizer in optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
            # The scale falls exactly when the scaler left a step out.
            if self.scaler.get_scale() < before:
                return self._skip("the gradients overflowed")
        self.steps += 1
        self._skipped_in_a_row = 0
        return True

    def _nonfinite(self, what: str) -> bool:
        text = f"{what} was not finite before optimizer step {self.steps + 1}"
        if self._on_nonfinite != "skip":
            self._end(text)
        return self._skip(text)

    def _skip(self, reason: str) -> bool:
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._max_skipped:
            self._end(f"{self._skipped_in_a_row} steps in a row were skipped, at last because {reason}")
        if self.skipped_steps >= 20 and self.skipped_steps > 0.1 * (self.steps + self.skipped_steps):
            runtime.note_hint(
                "skipped",
                f"more than a tenth of the optimizer steps are skipped in {self.dtype} ({reason}): "
                "use bfloat16 or float32, or a smaller learning rate",
            )
        return False

    def _end(self, text: str) -> NoReturn:
        if self._on_nonfinite == "prune":
            from optuna import TrialPruned  # only when needed: importing it takes a third of a second

            raise TrialPruned(text)
        raise FloatingPointError(f"{text}; lower the learning rate, or prune such trials with on_nonfinite='prune'")


def _parameters(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
