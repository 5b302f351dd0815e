"""Correct three faults of the distributed optimizer of megatron-core 0.19.2, which make a resume fail or change its losses.

* It creates the state that a checkpoint is loaded into only with the Adam of Apex or Transformer Engine. With that of torch, which it uses
  if neither is installed, a checkpoint is written and cannot be loaded (`assert len(steps) == 1` in `state_dict`).
* It then replaces torch's counter of steps by the one of before the load, which is 0, so the first steps after a resume are too large
  (`_set_main_param_and_optimizer_states`); and all parameters share it, so it counts too fast (`load_state_dict`).
* It copies loaded weights in fp32 into parameters that require gradients, outside of no_grad (`_set_main_param_and_optimizer_states`).
"""

from __future__ import annotations

from typing import Any

_LOAD = "_set_main_param_and_optimizer_states"


def correct_resume() -> None:
    """Replace the methods in this process."""
    import torch  # noqa: PLC0415 - after the shim
    from megatron.core.optimizer import distrib_optimizer  # noqa: PLC0415 - the same

    kind = distrib_optimizer.DistributedOptimizer
    setattr(kind, _LOAD, torch.no_grad()(getattr(kind, _LOAD)))
    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    get, load = kind.state_dict, kind.load_state_dict

    def state_dict(self: Any) -> Any:
        if isinstance(self.optimizer, torch.optim.Adam):
            _create_state(self.optimizer)
        return get(self)

    def load_state_dict(self: Any, state: Any) -> None:
        load(self, state)
        done = next((group["step"] for group in state["optimizer"]["param_groups"] if "step" in group), None)
        if done is not None and isinstance(self.optimizer, torch.optim.Adam):
            for values in self.optimizer.state.values():
                values["step"] = torch.tensor(float(done))

    kind.state_dict, kind.load_state_dict = state_dict, load_state_dict


def _create_state(optimizer: Any) -> None:
    import torch  # noqa: PLC0415 - after the shim

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                zeros = {name: torch.zeros_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
