# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26"]
# ///
"""A policy gradient without an entropy bonus: the reward rises, the entropy collapses.

The policy is a table of logits over 31 letters and an end token, given the letter before; a
response ends at the end token or after 16 letters. The reward is the share of letters that are
followed by the next letter of the alphabet. REINFORCE with advantages
normalised over the 64 responses of a step. Entropy in nats/token, averaged over the tokens of the responses; KL per token to the
policy of step 0. Times are simulated. Writes jsonl/entropy_collapse.jsonl.
"""

import torch
from places import dump, out_path
from tiny_gpt import SEED, Clock, determined

STEPS, RESPONSES, LENGTH, LETTERS = 400, 64, 16, 31
END = LETTERS
RATE = 0.05


def sample(logits_VV, generator):
    """Return letters (N, L+1) that begin with a random one, and which of them count (N, L)."""
    letters = torch.randint(0, LETTERS, (RESPONSES, 1), generator=generator)
    alive = torch.ones(RESPONSES, dtype=torch.bool)
    mask = []
    for _ in range(LENGTH):
        chances = logits_VV[letters[:, -1]].softmax(-1)
        drawn = torch.multinomial(chances, 1, generator=generator)
        mask.append(alive)
        alive = alive & (drawn[:, 0] != END)
        letters = torch.cat([letters, drawn], dim=1)
    return letters, torch.stack(mask, dim=1)


if __name__ == "__main__":
    path = out_path("jsonl/entropy_collapse.jsonl", __doc__)
    determined()
    generator = torch.Generator().manual_seed(SEED)
    logits_VV = (0.1 * torch.randn(LETTERS + 1, LETTERS + 1, generator=generator)).requires_grad_()
    reference_VV = logits_VV.detach().log_softmax(-1)
    optimizer = torch.optim.Adam([logits_VV], lr=RATE)
    clock, seen = Clock(), 0
    config = {"algorithm": "reinforce", "total_steps": STEPS, "lr": RATE, "gpus": 1, "seed": SEED}
    config |= {"responses_per_step": RESPONSES, "max_response_length": LENGTH, "kl_coef": 0.0}
    lines = [dump({"config": config})]
    for step in range(1, STEPS + 1):
        letters, mask = sample(logits_VV.detach(), generator)
        before, after = letters[:, :-1], letters[:, 1:]
        right = ((after == (before + 1) % LETTERS) & mask).sum(1)
        reward = right / LENGTH
        logp_NLV = logits_VV[before].log_softmax(-1)
        chosen = logp_NLV.gather(-1, after[..., None])[..., 0]
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        loss = -(advantage[:, None] * chosen * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = logits_VV.grad.norm()
        optimizer.step()
        with torch.no_grad():
            entropy = (-(logp_NLV.exp() * logp_NLV).sum(-1) * mask).sum() / mask.sum()
            apart = (logp_NLV.exp() * (logp_NLV - reference_VV[before])).sum(-1)
            kl = (apart * mask).sum() / mask.sum()
        tokens = int(mask.sum())
        seen += tokens
        clock.tick(2 + tokens / 512)
        row = {
            "step": step,
            "reward": reward.mean().item(),
            "reward_std": reward.std().item(),
            "entropy": entropy.item(),
            "kl": kl.item(),
            "loss": loss.item(),
            "grad_norm": norm.item(),
            "lr": RATE,
            "response_length/mean": tokens / RESPONSES,
            "num_tokens": seen,
            "timestamp": clock.time,
        }
        lines.append(dump({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}))
    path.write_text("".join(lines))
