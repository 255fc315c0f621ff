# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26"]
# ///
"""A mixture of 8 experts whose routing collapses once nothing holds it in balance.

Each block sends a byte to one of 8 experts. The load-balancing loss is E * sum(f_i * P_i), f_i
the share of bytes sent to expert i and P_i its mean probability; it is 1 in balance and 8 when
one expert takes all, and it is logged without its coefficient, as the mean of the two blocks.
Up to step 250 the coefficient is 0.05; then it is switched off and the routers learn at 200 times
the rate of the rest. Writes jsonl/moe_collapse.jsonl.
"""

import torch
import tiny_gpt
from places import dump, out_path
from tiny_gpt import D, TinyGPT, Training, feed_forward
from torch import nn

EXPERTS, COEFFICIENT, OFF, STEPS, FACTOR = 8, 0.05, 250, 1000, 200.0


class Mixture(nn.Module):
    """Top-1 routing over experts; remembers the balance of the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(EXPERTS)
        )
        self.coefficient = COEFFICIENT

    def forward(self, x_BTD):
        """Return what the chosen experts make of each byte, weighted by the router."""
        x_ND = x_BTD.flatten(0, 1)
        chances_NE = self.router(x_ND).softmax(-1)
        top_N, chosen_N = chances_NE.max(-1)
        out_ND = torch.zeros_like(x_ND)
        for i, expert in enumerate(self.experts):
            at = (chosen_N == i).nonzero()[:, 0]
            out_ND = out_ND.index_add(0, at, expert(x_ND[at]) * top_N[at, None])
        share_E = torch.bincount(chosen_N, minlength=EXPERTS) / len(chosen_N)
        self.balance = EXPERTS * (share_E * chances_NE.mean(0)).sum()
        self.busiest = EXPERTS * share_E.max().item()
        return out_ND.view_as(x_BTD)


class MoEGPT(TinyGPT):
    """The tiny model with mixtures in place of its dense layers."""

    def __init__(self) -> None:
        super().__init__(Mixture)

    def forward(self, tokens_BT, targets_BT):
        """Return the loss with the balancing term in it while training."""
        self.lm_loss = super().forward(tokens_BT, targets_BT)
        if not torch.is_grad_enabled():
            return self.lm_loss
        mixtures = [block.mlp for block in self.blocks]
        return self.lm_loss + sum(m.coefficient * m.balance for m in mixtures) / len(mixtures)


if __name__ == "__main__":
    path = out_path("jsonl/moe_collapse.jsonl", __doc__)
    tiny_gpt.TinyGPT = MoEGPT
    training = Training(total=STEPS)
    mixtures = [block.mlp for block in training.model.blocks]
    (rest,) = training.optimizer.param_groups
    own = {id(m.router.weight) for m in mixtures}
    rest["params"] = [p for p in rest["params"] if id(p) not in own]
    training.optimizer.add_param_group({"params": [m.router.weight for m in mixtures]})
    routers = training.optimizer.param_groups[1]
    more = {"num_experts": EXPERTS, "num_experts_per_tok": 1, "router_aux_loss_coef": COEFFICIENT}
    lines = [dump(training.config(save_every=100, **more))]
    for row in training.rows():
        if "loss" in row:
            row["loss"] = round(training.model.lm_loss.item(), 6)
            row["load_balancing_loss"] = round(sum(m.balance.item() for m in mixtures) / 2, 6)
            row["expert_load_max_over_mean"] = round(max(m.busiest for m in mixtures), 4)
            if row["step"] == OFF:
                routers["factor"] = FACTOR
                for mixture in mixtures:
                    mixture.coefficient = 0.0
        lines.append(dump(row))
    path.write_text("".join(lines))
