"""From a planted fault to its verdict, on models trained for real."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from stabcli.replay.batch import Batch
from stabcli.replay.cascade import Context, Settings, replay
from stabcli.replay.probes import Probe
from stabcli.replay.state import bisect
from stabcli.replay.window import StepDamage, damages, judged
from tests.replay import faults, models
from tests.replay.small import ROWS, world

ARCHS = ("llama", "gpt2")


def figures(case, verdict):
    """Precision of the named places, recall of named and of named or listed ones."""
    named = verdict.positions
    listed = {place for culprit in verdict.listed for place in culprit.positions}
    hit = len(named & case.places)
    return (
        hit / max(1, len(named)),
        hit / len(case.places),
        len((named | listed) & case.places) / len(case.places),
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_clean_batches_are_not_accused(arch):
    """Of twenty clean batches none is accused, one may have something listed, and each costs one
    forward and one backward."""
    w = world(arch)
    verdicts = [w.replay(w.plant.untouched(seed)) for seed in range(100, 120)]
    quiet = [v for v in verdicts if v.kind == "no-fault"]

    assert len(quiet) >= 19
    assert all(v.kind in {"no-fault", "anomalies"} for v in verdicts)
    assert {(v.forward_passes, v.backward_passes) for v in quiet} == {(1.0, 1.0)}
    assert all(v.numbers["share_coverage"] == pytest.approx(1.0, abs=1e-3) for v in verdicts)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("fault", ["one_id", "ngrams", "mojibake", "random_ids", "never_trained"])
def test_spikes_are_explained_by_what_was_planted(arch, fault):
    """The right kind; nearly nothing innocent named; what was planted named or listed; the named set
    explains the excess, other tokens do not, and clean text that it is carried into shows it too."""
    w = world(arch)
    make = {"random_ids": lambda s: w.plant.random_ids(s, 3),
            "never_trained": lambda s: w.plant.never_trained(s, 2, 40)}.get(fault)  # fmt: skip
    for seed in (11, 12):
        case = (make or getattr(w.plant, fault))(seed)
        verdict = w.replay(case)
        precision, _, listed = figures(case, verdict)

        assert verdict.kind in case.kinds, verdict.evidence
        assert precision >= 0.95
        assert listed >= 0.6
        assert set(verdict.token_ids) <= case.ids
        assert verdict.numbers["explained"] >= 0.7
        assert verdict.numbers["placebo"] <= 0.25
        assert verdict.numbers["sufficient"] >= 0.4
        assert verdict.confidence in {"high", "medium", "low"}
        assert sum(c.share for c in verdict.culprits) == pytest.approx(
            verdict.numbers["explained"], abs=0.01
        )
        assert verdict.culprits[0].role is not None


@pytest.mark.parametrize("arch", ARCHS)
def test_odd_ids_without_a_spike_are_anomalies(arch):
    """Six places of a never-trained ID move nothing: they are listed, not convicted."""
    w = world(arch)
    case = w.plant.never_trained(21, 1, 6)
    verdict = w.replay(case)

    assert verdict.kind == "anomalies"
    assert set(verdict.token_ids) == case.ids
    assert "explained" not in verdict.numbers


@pytest.mark.parametrize(
    "fault", ["outside", "labels_shifted", "labels_permuted", "padding_trained", "all_masked"]
)
def test_faults_of_the_batch_itself_cost_no_pass(fault):
    """They are found before the model is run, and the model is not run."""
    w = world("llama")
    case = getattr(w.plant, fault)(31)
    verdict = w.replay(case)

    assert verdict.kind in case.kinds
    assert verdict.forward_passes == 0
    assert verdict.positions <= case.places
    assert len(verdict.positions) >= 0.95 * len(case.places)


def test_hard_text_is_not_blamed_on_a_few_tokens():
    """Most of a batch from another kind of text: hard data, or its sequences, never IDs."""
    w = world("llama")
    for seed in (41, 42, 43):
        verdict = w.replay(w.plant.foreign(seed))

        assert verdict.kind in {
            "hard-data",
            "data-sequences",
            "data-segments",
            "no-fault",
            "anomalies",
        }
        assert not verdict.token_ids


@pytest.mark.parametrize("logged", [{"logged_loss": 9.3}, {"logged_grad_norm": float("nan")}])
def test_a_spike_that_does_not_come_back_is_not_reproduced(logged):
    """The log spiked, the replay is normal: what is still open is said."""
    w = world("llama")
    context = Context(pad_id=0, checkpoint_step=90, **logged)
    verdict = w.replay(w.plant.untouched(51), context=context)

    assert verdict.kind == "not-reproduced"
    assert any("hardware" in open_question for open_question in verdict.not_checked)
    assert any("90 steps older" in q or "-90 steps" in q for q in verdict.not_checked)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_bad_state_is_told_from_a_bad_batch(arch):
    """One tensor scaled up: clean batches are off too, and the older checkpoint names the tensor."""
    w = world(arch)
    broken = w.copy()
    name = "model.norm.weight" if arch == "llama" else "transformer.ln_f.weight"
    broken.get_parameter(name).data.mul_(6)
    before = {k: v.clone() for k, v in broken.state_dict().items()}
    verdict = w.replay(w.plant.untouched(61), broken, older=w.model)
    usual = {
        "usual_loss": w.calibration.loss.middle,
        "usual_grad_norm": w.calibration.grad_norm.middle,
    }
    alone = w.replay(w.plant.untouched(61), broken, context=Context(**usual))

    assert verdict.kind == alone.kind == "state-fault"
    assert any(name in sentence for sentence in verdict.evidence)
    assert all(torch.equal(before[k], v) for k, v in broken.state_dict().items())


def test_the_search_for_a_bad_tensor_ends_where_there_is_none():
    """With nothing to be gained from the older weights it says so; with all of it bad it stops."""
    w = world("llama")
    control = Probe(w.model)
    none = bisect(control, w.model, w.calibration.grids[0], most_loss=0.01)
    diverged, noise = w.copy(), torch.Generator().manual_seed(0)
    for parameter in diverged.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    much = bisect(Probe(diverged), w.model, w.calibration.grids[0], w.calibration.loss.limit)

    assert none.tensors == ()
    assert len(much.tensors) > 1
    assert much.tests <= 65


def test_broken_weights_are_named_before_any_pass():
    """A row of NaN, and the places of its ID."""
    w = world("llama")
    broken, case = w.copy(), w.plant.untouched(71)
    token_id = int(case.tokens[0, 5])
    broken.get_input_embeddings().weight.data[token_id] = torch.nan
    verdict = w.replay(case, broken)

    assert verdict.kind == "checkpoint-nonfinite"
    assert verdict.token_ids == (token_id,)
    assert verdict.forward_passes == 0


class Cubes(torch.nn.Module):
    """A model without a norm: what is far too large in goes out infinite."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.cube = Cube()
        self.head = torch.nn.Linear(16, 50)

    def forward(self, x):
        return self.head(self.cube(self.table(x)))


class Cube(torch.nn.Module):
    def forward(self, x):
        return x**3


def test_a_row_that_blows_up_the_forward_is_named():
    """Finite weights, a forward that is not: the ID at the first bad module, and all its places."""
    torch.manual_seed(0)
    model = Cubes()
    model.table.weight.data.mul_(0.1)
    model.table.weight.data[7] = 1e20
    clean = [torch.randint(10, 50, (4, 20)) for _ in range(5)]
    bad = clean[0].clone()
    bad[1, 4] = bad[3, 9] = 7
    verdict = replay(model, Batch(tokens_BT=bad), [Batch(tokens_BT=x) for x in clean[1:]])

    assert verdict.kind == "data-ids"
    assert verdict.token_ids == (7,)
    assert verdict.positions == {(1, 4), (3, 9)}
    assert "first module that is not finite is cube" in verdict.evidence[0]
    assert any("number format" in q for q in verdict.not_checked)


def test_an_overflow_of_the_format_is_told_from_bad_data():
    """A layer scaled up and the next one down by the same power of two is the same function in
    float32 and overflows in float16: format, module and positions are named."""
    w = world("llama")
    scaled = w.copy()
    mlp = scaled.model.layers[1].mlp
    heights = []
    handle = mlp.up_proj.register_forward_hook(
        lambda m, a, out: heights.append(float(out.abs().max()))
    )
    cases = [w.plant.untouched(seed) for seed in range(91, 121)]
    with torch.no_grad():
        for case in cases:
            scaled(case.tokens)
    handle.remove()
    order = sorted(range(len(cases)), key=heights.__getitem__)
    controls, highest = order[:4], order[-1]
    assert heights[highest] > 1.02 * heights[controls[-1]]
    factor = 65504 / (0.99 * heights[highest])
    mlp.up_proj.weight.data.mul_(factor)
    mlp.down_proj.weight.data.div_(factor)
    references = [cases[i].batch for i in controls]
    verdict = replay(scaled.half(), cases[highest].batch, references)
    overflowing = replay(scaled, references[0], [cases[highest].batch, *references])

    assert verdict.kind == "number-format"
    assert any("layers.1.mlp.up_proj" in sentence for sentence in verdict.evidence)
    assert verdict.culprits
    assert overflowing.kind == "number-format"
    assert "clean batches" in overflowing.evidence[0]
    assert next(scaled.parameters()).dtype == torch.float16


def test_a_poisoned_id_is_a_meeting_of_batch_and_state():
    """An ID bent to hurt what follows is named although its victims stand out, as context, and the
    older checkpoint takes the batch well."""
    w = world("gpt2")
    poisoned = w.copy()
    victim = w.plant.harmless_id(range(200, 201))
    faults.poison(poisoned, w.plant, victim)
    case = w.plant.poisoned(200, victim, 20)
    verdict = w.replay(case, poisoned, older=w.model)

    assert verdict.kind == "batch-x-state"
    assert verdict.token_ids == (victim,)
    assert verdict.positions == case.places
    assert verdict.numbers["untrained"] < 1.0


@pytest.mark.parametrize("fault", ["ngrams", "labels_shifted"])
def test_the_step_that_did_the_damage_is_found(fault):
    """Of a window of six, by one virtual step each; model and optimizer stay as they were."""
    w = world("llama")
    model = w.copy()
    optimizer = models.adamw(model)
    shared = copy.deepcopy(w.optimizer.state_dict())
    optimizer.load_state_dict(shared)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3
    batches = [w.plant.untouched(300 + i).batch for i in range(6)]
    many = {"rows": ROWS} if fault == "labels_shifted" else {"rows": 5}
    batches[2] = getattr(w.plant, fault)(300, **many).batch
    before = {k: v.clone() for k, v in model.state_dict().items()}
    moment = shared["state"][0]["exp_avg"].clone()
    found = damages(Probe(model), batches, w.references[:2], optimizer)

    window = judged(found, w.calibration)
    assert (window.guilty, window.odd) == (2, (2,))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    for state in (shared, optimizer.state_dict()):
        assert torch.equal(state["state"][0]["exp_avg"], moment)
    assert judged([d for i, d in enumerate(found) if i != 2], w.calibration).odd == ()
    assert judged([], w.calibration).guilty is None
    assert judged(found[:3], w.calibration).guilty == 2
    assert judged(found[1:3], w.calibration).guilty is None  # of one sound step there is no spread


def step(damage=0.0, lasting=0.0, loss=3.0):
    return StepDamage(step=0, loss=loss, grad_norm=1.0, damage=damage, lasting=lasting)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (step(damage=0.02, loss=9.0), True),  # by the step itself
        (step(lasting=0.02, loss=9.0), True),  # by what its momentum moves later
        (step(damage=math.nan, lasting=math.nan, loss=math.nan), True),
        (step(damage=0.001, lasting=0.001, loss=9.0), False),  # as the others
        (step(damage=-0.02, lasting=-0.02, loss=9.0), False),  # it did good
        (step(damage=0.02, lasting=0.02), False),  # its batch is usual
    ],
)
def test_damage_is_told_or_not_guessed(odd, told):
    """Only of a batch out of the band, and beyond what sound steps do by chance."""
    sound = [step(damage=d / 1000, lasting=-d / 1000) for d in (-2, -1, 0, 0, 1, 2)]
    band = SimpleNamespace(limit=4.0)
    window = judged([*sound, odd], SimpleNamespace(loss=band, grad_norm=band))

    assert window.guilty == (6 if told else None)
    assert window.odd == (() if odd.loss == 3.0 else (6,))


def test_micro_batches_come_to_the_same_verdict():
    """Three sequences at a time: the same culprits, one more pass for the shares."""
    w = world("llama")
    case = w.plant.one_id(12)
    whole = w.replay(case)
    parts = replay(
        w.model,
        case.batch,
        w.references,
        context=Context(pad_id=0),
        settings=Settings(micro_rows=3),
    )

    assert (parts.kind, parts.positions) == (whole.kind, whole.positions)
    assert parts.numbers["explained"] == pytest.approx(whole.numbers["explained"], abs=0.02)


def test_what_was_not_looked_at_is_said():
    """No labels, no padding ID, no log, no older checkpoint, no optimizer, no mapping."""
    w = world("llama")
    case = w.plant.one_id(12)
    verdict = replay(w.model, Batch(tokens_BT=case.tokens), w.references)
    said = " ".join(verdict.not_checked)

    assert verdict.kind in case.kinds
    for what in ("label faults", "padding", "weights were already bad", "older checkpoint",
                 "never trained", "mapping"):  # fmt: skip
        assert what in said


def test_the_model_is_left_as_it_was():
    """Weights to the bit, no gradients, training mode kept, even after a spike was taken apart."""
    w = world("gpt2")
    before = {k: v.clone() for k, v in w.model.state_dict().items()}
    w.model.train()
    w.replay(w.plant.ngrams(13))
    assert w.model.training
    w.model.eval()

    assert all(torch.equal(before[k], v) for k, v in w.model.state_dict().items())
    assert all(p.grad is None for p in w.model.parameters())
