# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""Write the synthetic logs: faults that no run of a few minutes on a CPU shows.

Every file says in its first line that it is synthetic. Steps of the faults are constants below and
in truth.json. Usage: python synthetic_faults.py [--out FOLDER]
"""

import argparse
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1] / "jsonl"


def config(**facts):
    """The first line: what the run is, and that it is none."""
    return {"config": {"synthetic": True, **facts}}


def digits(x, n=5):
    """A number as trainers log it."""
    return float(f"{x:.{n}g}") if np.isfinite(x) else float(x)


def rows(step, **columns):
    """One object a step; None where a column was not logged."""
    for i, s in enumerate(step):
        row = {"step": int(s)}
        for name, values in columns.items():
            if values[i] is not None and not (isinstance(values[i], float) and values[i] is None):
                row[name] = digits(values[i])
        yield row


def every(values, k):
    """Values only in every k-th row."""
    return [v if (i + 1) % k == 0 else None for i, v in enumerate(values)]


def ramp(s, first, last, top):
    """From 0 at step first to top at step last, and top from there on."""
    return np.clip((s - first) / (last - first), 0, 1) * top


def pretraining(n, seed, level=1.9):
    """Loss, gradient norm and learning rate of a healthy run of n rows."""
    r = np.random.default_rng(seed)
    s = np.arange(1, n + 1)
    loss = level + 8.5 * (s + 20.0) ** -0.42 + r.normal(0, 0.03, n)
    norm = r.lognormal(np.log(0.35), 0.15, n) * (1 + 4 * np.exp(-s / 60))
    warm = n // 20
    rate = 3e-4 * np.where(
        s < warm, s / warm, 0.55 + 0.45 * np.cos(np.pi * np.clip((s - warm) / (n - warm), 0, 1))
    )
    return r, s, loss, norm, rate


def overfit():
    """Validation turns at step 600 while training goes on down, and leaps at step 1,000."""
    r, s, loss, norm, rate = pretraining(1200, 1)
    loss -= np.maximum(0, s - 400) * 4e-4
    val = (
        1.98
        + 8.5 * (s + 20.0) ** -0.42
        + np.maximum(0, s - 600) * 4e-4
        + r.normal(0, 0.004, len(s))
    )
    val[999:] += 0.25
    yield config(params=125e6, tokens_per_step=262144, gpus=8)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate, val_loss=every(val, 50))


def gradients():
    """The gradient norm runs at 15 times its level from step 700 to 739; the loss barely moves."""
    r, s, loss, norm, rate = pretraining(1200, 2)
    norm[699:739] = 12 * r.lognormal(0, 0.2, 40)
    yield config(params=1e9, grad_clip=1.0)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate)


def divergence():
    """The loss leaves its level at step 800 and climbs for good."""
    r, s, loss, norm, rate = pretraining(1200, 3)
    climb = np.maximum(0, s - 800)
    yield config(params=1e9)
    yield from rows(s, loss=loss + climb * 2.5e-3, grad_norm=norm * (1 + climb / 200), lr=rate)


def broken():
    """Labels that do not belong to the inputs: the loss never leaves the level of a guess."""
    r = np.random.default_rng(4)
    s = np.arange(1, 401)
    yield config(params=1e9, vocab_size=50257)
    yield from rows(s, loss=10.84 + r.normal(0, 0.01, 400), grad_norm=r.lognormal(-2, 0.1, 400))


def loss_scale():
    """fp16: from step 700 on the loss scale halves again and again until it is at its minimum."""
    r, s, loss, norm, rate = pretraining(1000, 5)
    scale = np.full(1000, 65536.0)
    fall = np.arange(700, 1000, 12)
    for i, at in enumerate(fall):
        scale[at:] = max(1.0, 65536.0 / 2 ** (i + 1))
    skipped = np.zeros(1000)
    skipped[fall] = 1
    yield config(params=13e9, precision="fp16")
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate, loss_scale=scale, skipped_steps=skipped)


def utilisation():
    """MFU falls from 41 % to 24 % at step 600 and stays there."""
    r, s, loss, norm, rate = pretraining(1000, 6)
    mfu = 0.41 + r.normal(0, 0.004, 1000)
    mfu[599:] -= 0.17
    yield config(params=7e9, gpus=64, gpu="H100", tokens_per_step=1048576)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate, mfu=mfu)


def impossible_mfu():
    """An MFU above 1: a peak was taken for the wrong device."""
    r, s, loss, norm, rate = pretraining(400, 7)
    yield config(params=7e9)
    yield from rows(s, loss=loss, grad_norm=norm, mfu=1.12 + r.normal(0, 0.005, 400))


def router():
    """A balance loss below its minimum from step 500, and one expert that takes it all from 700."""
    r, s, loss, norm, rate = pretraining(1200, 8)
    aux = 1.02 + r.normal(0, 0.004, 1200)
    aux[499:699] -= 0.12
    aux[899:] += np.minimum(2.0, np.arange(301) * 0.02)
    load = 1.3 + r.normal(0, 0.03, 1200)
    load[899:] += np.minimum(5.0, np.arange(301) * 0.05)
    yield config(params=8e9, num_experts=8, aux_loss_coefficient=1.0)
    yield from rows(
        s,
        loss=loss,
        grad_norm=norm,
        lr=rate,
        load_balancing_loss=aux,
        expert_load_max_over_mean=load,
    )


def policy():
    """A policy run that goes wrong in many ways, one after the other."""
    r = np.random.default_rng(9)
    n = 800
    s = np.arange(1, n + 1)
    reward = 0.2 + 0.5 * (1 - np.exp(-s / 150)) + r.normal(0, 0.01, n) - ramp(s, 680, 700, 0.5)
    length = 300 + ramp(s, 400, 600, 900) + r.normal(0, 8, n)
    entropy = 0.45 + r.normal(0, 0.01, n) + ramp(s, 500, 640, 2.2)
    kl = 0.02 + ramp(s, 420, 560, 4.0) + r.lognormal(-6, 0.3, n)
    clip = 0.08 + ramp(s, 560, 600, 0.35) + r.normal(0, 0.01, n)
    dead = 0.25 + ramp(s, 600, 650, 0.7) + r.normal(0, 0.01, n)
    yield config(params=7e9, gpus=16)
    yield from rows(
        s,
        loss=r.normal(0, 0.01, n),
        reward=reward,
        entropy=entropy,
        kl=kl,
        clip_ratio=clip,
        frac_reward_zero_std=dead,
        **{"response_length/mean": length},
    )


def hacking():
    """The reward keeps rising after step 400 while the score on held-out tasks falls."""
    r = np.random.default_rng(11)
    n = 800
    s = np.arange(1, n + 1)
    reward = 0.2 + 0.5 * (1 - np.exp(-s / 150)) + ramp(s, 400, 800, 0.4) + r.normal(0, 0.01, n)
    score = 0.3 + 0.3 * (1 - np.exp(-s / 150)) - ramp(s, 400, 800, 0.25) + r.normal(0, 0.004, n)
    yield config(params=7e9, gpus=16)
    yield from rows(s, loss=r.normal(0, 0.01, n), reward=reward, val_reward=every(score, 20))


def resumed(seed, change, rate_factor=1.0):
    """A run taken to 620, gone back to 500 and on to 1,000; the second attempt changed."""
    r, s, loss, norm, rate = pretraining(1000, seed)
    again = np.arange(500, 1000)
    second = loss[again] + r.normal(0, 0.005, len(again))
    yield config(params=1e9, checkpoint_every=100)
    yield from rows(s[:620], loss=loss[:620], grad_norm=norm[:620], lr=rate[:620])
    yield from rows(
        s[again], loss=change(second), grad_norm=norm[again], lr=rate[again] * rate_factor
    )


def bad_resume():
    """Restarted at 501 from 620 with a schedule that starts over: loss 6 % up, for good."""
    yield from resumed(10, lambda x: x * 1.06, 1.6)


def repeated_data():
    """Restarted at 501 from 620 with a data loader that starts over: what is known comes again."""
    yield from resumed(12, lambda x: np.concatenate([x[:120] * 0.9, x[120:] * 1.0]))


def shifts():
    """The loss steps up by 12 % at 500 and back at 700; at 1,130 it drops by a quarter."""
    r, s, loss, norm, rate = pretraining(1600, 14)
    loss[499:699] *= 1.12
    loss[1129:] *= 0.75
    yield config(params=1e9)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate)


def vanishing():
    """From step 600 on all labels are masked: no gradient is left."""
    r, s, loss, norm, rate = pretraining(800, 15)
    norm[599:] = 0.0
    loss[599:] = loss[598]
    yield config(params=1e9)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate)


def objective():
    """The loss of a policy, at home within 0.1 of zero, swings by tens from step 500 on."""
    r = np.random.default_rng(16)
    s = np.arange(1, 701)
    loss = r.normal(-0.05, 0.06, 700)
    loss[499:] += r.normal(0, 1, 201) * np.exp(ramp(s[499:], 500, 640, 3.5)) * 2
    yield config(params=7e9, gpus=16)
    yield from rows(s, **{"actor/pg_loss": loss, "reward": 0.3 + r.normal(0, 0.02, 700)})


def attention():
    """The largest attention logit grows from 12 to 150; it passes 100 at step 822."""
    r, s, loss, norm, rate = pretraining(1000, 17)
    logits = 12 * np.exp(np.clip((s - 400) / 200, 0, 2.55)) * r.lognormal(0, 0.03, 1000)
    yield config(params=8e9)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate, max_attention_logit=logits)


def clipping():
    """The gradient norm grows to eight times what it was; the clip of 1.0 cuts nearly all."""
    r, s, loss, norm, rate = pretraining(2000, 18)
    yield config(params=1e9, grad_clip=1.0)
    yield from rows(s, loss=loss, grad_norm=norm * np.exp(ramp(s, 800, 1800, 2.1)), lr=rate)


def spikes():
    """Five spikes of one row each, 250 rows apart, and each higher than the one before."""
    r, s, loss, norm, rate = pretraining(1500, 19)
    at = np.arange(300, 1500, 250)
    loss[at - 1] *= 1.5 + 0.2 * np.arange(len(at))
    norm[at - 1] *= 6
    yield config(params=1e9)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate)


def standstill():
    """Between steps 400 and 401 the run hangs for five hours; the speed it logs knows nothing."""
    r, s, loss, norm, rate = pretraining(800, 20)
    clock = 1.75e9 + 2.0 * s + np.where(s > 400, 18000.0, 0.0)
    speed = 262144 / (2.0 + r.normal(0, 0.01, 800))
    yield config(params=1e9, gpus=64, tokens_per_step=262144)
    for row, at in zip(
        rows(s, loss=loss, grad_norm=norm, lr=rate, tokens_per_sec=speed), clock, strict=True
    ):
        yield {**row, "timestamp": float(at)}


def stuck():
    """A leap at 9, the same loss and norm from 301 to 340, a rate of 0 from 701 to 780."""
    r, s, loss, norm, rate = pretraining(900, 21)
    loss[8:10] *= 4
    loss[300:340], norm[300:340] = loss[300], norm[300]
    rate[700:780] = 0.0
    yield config(params=1e9)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate)


def guards():
    """What only the guards of other systems look at; and a leap to 25 times the loss at 500; z-loss at 700."""
    r, s, loss, norm, rate = pretraining(900, 22)
    loss[499:502] *= 25
    norm[499:502] *= 200
    update = r.lognormal(-3, 0.1, 900)
    update[599:603] *= 4
    took = 2.0 + r.normal(0, 0.02, 900)
    took[849] = 9.0
    zeta = 4e-4 * r.lognormal(0, 0.05, 900)
    zeta[699:740] *= 6
    yield config(params=1e9)
    yield from rows(
        s,
        loss=loss,
        grad_norm=norm,
        lr=rate,
        update_norm=update,
        step_time=took,
        router_z_loss=zeta,
    )


def rollout():
    """Importance weights leave 1 from step 100 on; the critic explains nothing from 135 on."""
    r = np.random.default_rng(23)
    s = np.arange(1, 201)
    weights = 1 + r.normal(0, 0.02, 200) + ramp(s, 100, 160, 1.6)
    yield config(params=7e9)
    yield from rows(
        s,
        **{
            "actor/pg_loss": r.normal(0, 0.01, 200),
            "rollout_corr/rollout_is_mean": weights,
            "critic/vf_explained_var": 0.5 + r.normal(0, 0.03, 200) - ramp(s, 120, 150, 1.0),
        },
    )


def preferences():
    """Chosen and rejected answers alike become unlikely at once at step 350; the accuracy stays."""
    r = np.random.default_rng(24)
    s = np.arange(1, 601)
    fell = np.clip((s - 350) / 12, 0, 1) * 3.0
    slow = 0.5 * np.log1p(s / 100)
    chosen = -slow - fell + r.normal(0, 0.1, 600)
    rejected = -1.5 * slow - 0.8 - fell + r.normal(0, 0.3, 600)
    margin = chosen - rejected
    yield config(params=7e9)
    yield from rows(
        s,
        **{
            "loss": np.log1p(np.exp(-margin)),
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/accuracies": np.clip(0.7 + r.normal(0, 0.05, 600), 0, 1),
        },
    )


def unmoved():
    """The training loss is 9 % up from step 700 to 1,100: neighbours are alike; held out it is not."""
    r, s, loss, norm, rate = pretraining(1600, 24)
    val = 1.93 + 8.5 * (s + 20.0) ** -0.42 + r.normal(0, 0.004, len(s))
    loss[699:1100] *= 1.09
    yield config(params=125e6, tokens_per_step=262144, gpus=8)
    yield from rows(s, loss=loss, grad_norm=norm, lr=rate, val_loss=every(val, 50))


def masked():
    """A shard full of one pattern from step 500 to 539: a third of it is masked, the loss is low."""
    r, s, loss, norm, rate = pretraining(1000, 25)
    share = np.where(r.random(len(s)) < 0.1, 1 / 512, 0.0)
    share[499:539] = 0.33 + r.normal(0, 0.02, 40)
    yield config(params=7e9)
    yield from rows(
        s,
        **{
            "train/CE loss": loss * (1 - share),
            "optim/total grad norm": norm,
            "optim/LR (group 0)": rate,
            "train/masked instances (%)": share,
        },
    )


LOGS = {
    "synthetic_overfit": overfit,
    "synthetic_gradients": gradients,
    "synthetic_divergence": divergence,
    "synthetic_broken": broken,
    "synthetic_loss_scale": loss_scale,
    "synthetic_mfu": utilisation,
    "synthetic_impossible_mfu": impossible_mfu,
    "synthetic_router": router,
    "synthetic_policy": policy,
    "synthetic_hacking": hacking,
    "synthetic_bad_resume": bad_resume,
    "synthetic_repeated_data": repeated_data,
    "synthetic_spikes": spikes,
    "synthetic_shifts": shifts,
    "synthetic_vanishing": vanishing,
    "synthetic_objective": objective,
    "synthetic_attention": attention,
    "synthetic_clipping": clipping,
    "synthetic_standstill": standstill,
    "synthetic_stuck": stuck,
    "synthetic_guards": guards,
    "synthetic_rollout": rollout,
    "synthetic_preferences": preferences,
    "synthetic_unmoved": unmoved,
    "synthetic_masked": masked,
}

if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=HERE)
    folder = arguments.parse_args().out
    for name, make in LOGS.items():
        text = "".join(json.dumps(row) + "\n" for row in make())
        (folder / f"{name}.jsonl").write_text(text)
