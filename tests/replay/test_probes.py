"""One forward and one backward, and the exact share of each position."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from stabcli.errors import ReplayError
from stabcli.replay.batch import IGNORED, Batch, shift_labels
from stabcli.replay.forward import token_losses
from stabcli.replay.probes import Grid, Probe, examined
from tests.replay.models import untrained

IDS = 61


def noisy(arch):
    """An untrained model whose gains and biases are not all alike."""
    model = untrained(arch, IDS, width=32, layers=2).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(rows=4, length=12, seed=0):
    return torch.randint(2, IDS, (rows, length), generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """Tokens to logits, each position by itself: its gradients can be told apart by hand."""

    def __init__(self, how="tensor"):
        super().__init__()
        self.table = nn.Embedding(IDS, 8)
        self.head = nn.Linear(8, IDS)
        self.how = how

    def forward(self, x):
        logits = self.head(self.table(x))
        return {"tensor": logits, "tuple": (logits, None), "dict": {"logits": logits},
                "last": logits[:, -1:], "nothing": None}[self.how]  # fmt: skip


class NanoGPT(Plain):
    def forward(self, idx, targets=None):
        logits = self.head(self.table(idx))
        return (logits if targets is not None else logits[:, [-1]]), None


def test_loss_and_its_gradient_are_those_of_cross_entropy():
    """Value, gradient and ignored targets agree with torch, and entropy with its distribution."""
    logits = torch.randn(3, 5, 7, requires_grad=True)
    targets = torch.randint(0, 7, (3, 5))
    targets[1, 2:] = IGNORED
    loss, entropy, variance = token_losses(logits, targets)
    weights = torch.rand(3, 5)
    (gradient,) = torch.autograd.grad((loss * weights).sum(), logits)
    theirs = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    ).view(3, 5)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), logits)
    distribution = torch.distributions.Categorical(logits=logits)
    surprisal = -distribution.logits
    second = (distribution.probs * surprisal.square()).sum(-1)

    assert torch.allclose(loss, theirs, atol=1e-6)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert torch.allclose(entropy, distribution.entropy(), atol=1e-5)
    assert torch.allclose(variance, second - entropy.square(), atol=1e-4)
    assert not entropy.requires_grad


def test_impossible_tokens_do_not_spoil_the_entropy():
    """Logits masked with -inf have probability 0 and add nothing."""
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]])
    loss, entropy, _ = token_losses(logits, torch.tensor([[0]]))

    assert loss.item() == pytest.approx(math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_loss_is_what_the_library_computes(arch):
    """Without labels the loss is Hugging Face's of labels = tokens."""
    model, x = noisy(arch), tokens()
    theirs = model(input_ids=x, labels=x).loss.item()

    assert Probe(model).measure(Grid.of(Batch(tokens_BT=x))).loss == pytest.approx(theirs, rel=1e-5)


def test_the_last_target_counts_where_there_is_one():
    """Labels that reach one token beyond the sequence (nanoGPT's y) are trained on in full."""
    model, x = Plain(), tokens(length=13)
    batch = Batch(tokens_BT=x[:, :-1], labels_BT=x[:, 1:])
    m = Probe(model).measure(Grid.of(batch))
    theirs = functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    assert int(m.live_BS.sum()) == 4 * 12
    assert m.loss == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("how", ["tensor", "tuple", "dict"])
def test_models_may_return_logits_in_several_ways(how):
    """A tensor, a tuple that begins with one, and a mapping are understood alike."""
    torch.manual_seed(0)
    model = Plain()
    expected = Probe(model).measure(Grid.of(Batch(tokens_BT=tokens()))).loss
    model.how = how

    assert Probe(model).measure(Grid.of(Batch(tokens_BT=tokens()))).loss == expected


def test_nanogpt_gives_all_positions_only_when_given_targets():
    """A model that gives the last position without targets is called with them."""
    assert Probe(NanoGPT()).measure(Grid.of(Batch(tokens_BT=tokens()))).loss_BS.shape == (4, 13)


@pytest.mark.parametrize("how", ["last", "nothing"])
def test_a_model_without_all_logits_is_refused(how):
    """The message says what came and what to do."""
    with pytest.raises(ReplayError, match=r"Plain: forward gives .*: wrap the model"):
        Probe(Plain(how)).measure(Grid.of(Batch(tokens_BT=tokens())))


def test_a_model_without_an_embedding_is_refused():
    """Without a table of tokens there is nothing to replay."""
    with pytest.raises(ReplayError, match=r"no nn\.Embedding"):
        Probe(nn.Linear(2, 2))


def test_shares_are_the_products_of_gradients():
    """Where positions do not mix, the share of one is its own gradient times the whole one."""
    model, x = Plain(), tokens(rows=2, length=5)
    m = Probe(model).measure(Grid.of(Batch(tokens_BT=x)), backward=True, shares=True)
    weights = list(model.parameters())
    losses = functional.cross_entropy(
        model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction="none"
    )
    each = [torch.autograd.grad(loss / len(losses), weights, retain_graph=True) for loss in losses]
    whole = [sum(parts) for parts in zip(*each, strict=True)]
    expected = [sum(float((a * b).sum()) for a, b in zip(g, whole, strict=True)) for g in each]

    assert m.share_BS[:, :4].flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-8)
    assert float(m.share_BS[:, 4:].abs().max()) == 0


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_shares_add_up_to_the_squared_gradient_norm(arch):
    """Tied or not, with gains, biases and learned positions, in one pass or several."""
    model, grid = noisy(arch), Grid.of(Batch(tokens_BT=tokens()))
    one = Probe(model).measure(grid, backward=True, shares=True)
    many = Probe(model, micro_rows=3).measure(grid, backward=True, shares=True)

    assert one.coverage == pytest.approx(1.0, abs=1e-4)
    assert many.coverage == pytest.approx(1.0, abs=1e-4)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert torch.allclose(one.share_BS, many.share_BS, atol=1e-5 * float(one.share_BS.abs().max()))


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_shares_in_a_short_format_agree(arch):
    """In bfloat16 the shares correlate with float32's as 0.999 or better."""
    wide, short = noisy(arch), noisy(arch).bfloat16()
    grid = Grid.of(Batch(tokens_BT=tokens(8, 24)))
    both = [
        Probe(m).measure(grid, backward=True, shares=True).share_BS.flatten() for m in (wide, short)
    ]

    assert float(torch.corrcoef(torch.stack(both))[0, 1]) >= 0.999


def test_tied_weights_stay_tied():
    """The output layer has the embedding's very parameter again, in its old order, even after an
    error in the pass, and the gradient is the one a trainer would get."""
    model, x = noisy("gpt2"), tokens()
    model.lm_head.bias = nn.Parameter(torch.zeros(IDS))
    order = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    Probe(model).measure(Grid.of(Batch(tokens_BT=x)), backward=True, shares=True)
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model(input_ids=x, labels=x).loss.backward()
    with pytest.raises(IndexError):
        Probe(model).measure(Grid.of(Batch(tokens_BT=x + IDS)), backward=True, shares=True)

    assert model.lm_head.weight is model.transformer.wte.weight
    assert [name for name, _ in model.named_parameters(remove_duplicate=False)] == order
    model.zero_grad(set_to_none=True)
    model(input_ids=x, labels=x).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(got[name], parameter.grad, atol=1e-6), name


def test_frozen_weights_have_no_share():
    """What is not trained is left out of norm and shares alike: the coverage stays whole."""
    model = noisy("llama")
    full = Probe(model).measure(Grid.of(Batch(tokens_BT=tokens())), backward=True).grad_norm
    model.get_input_embeddings().weight.requires_grad_(requires_grad=False)
    m = Probe(model).measure(Grid.of(Batch(tokens_BT=tokens())), backward=True, shares=True)

    assert m.coverage == pytest.approx(1.0, abs=1e-4)
    assert m.grad_norm < full


def test_a_layer_without_a_term_shows_in_the_coverage():
    """A weight that no layer owns is seen as a part of the norm without shares."""

    class Odd(Plain):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((IDS,), 3.0))

        def forward(self, x):
            return super().forward(x) * self.scale

    m = Probe(Odd()).measure(Grid.of(Batch(tokens_BT=tokens())), backward=True, shares=True)

    assert m.coverage < 0.99


def test_the_model_is_left_as_it_was():
    """Weights to the bit, training mode of each module, no gradients."""
    model = noisy("gpt2").train()
    model.transformer.h[0].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with examined(model):
        Probe(model).measure(Grid.of(Batch(tokens_BT=tokens())), backward=True, shares=True)
        assert not model.training

    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training
    assert not model.transformer.h[0].training
    assert all(p.grad is None for p in model.parameters())


def test_nothing_trained_on_is_a_loss_of_zero():
    """A grid without targets divides by no zero."""
    batch = Batch(tokens_BT=tokens(), labels_BT=torch.full((4, 12), IGNORED))
    m = Probe(noisy("llama")).measure(Grid.of(batch), backward=True, shares=True)

    assert (m.loss, m.grad_norm) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens_BT": torch.zeros(2, 3)}, "give integers"),
        ({"tokens_BT": torch.zeros(3, dtype=torch.long)}, "sequences by positions"),
        ({"tokens_BT": torch.zeros(0, 3, dtype=torch.long)}, "0 sequences of 3 tokens"),
        ({"tokens_BT": torch.zeros(2, 1, dtype=torch.long)}, "nothing to predict"),
        ({"tokens_BT": tokens(), "labels_BT": tokens(3)}, "labels has shape"),
        ({"tokens_BT": tokens(), "loss_mask_BT": tokens(3)}, "loss mask has shape"),
        ({"tokens_BT": tokens(), "sample_ids": ("a",)}, "1 sample IDs for 4"),
    ],
)
def test_batches_no_model_could_be_fed_are_refused(given, message):
    """One clear line each."""
    with pytest.raises(ReplayError, match=message):
        Batch(source="x.json", **given)


def test_masks_take_targets_away():
    """The loss mask by position; padding only where no labels say otherwise."""
    x = tokens(1, 4)
    mask = torch.tensor([[1, 1, 1, 0]])

    assert Batch(tokens_BT=x).targets_BT().tolist() == shift_labels(x).tolist()
    assert (Batch(tokens_BT=x, attention_mask_BT=mask).targets_BT() == IGNORED).tolist() == [
        [False, False, True, True]
    ]
    assert (Batch(tokens_BT=x, loss_mask_BT=mask.flip(1)).targets_BT() == IGNORED).tolist() == [
        [True, False, False, True]
    ]


def test_rows_of_a_batch_keep_what_belongs_to_them():
    """Labels, masks and sample IDs go with their sequences."""
    batch = Batch(tokens_BT=tokens(), labels_BT=tokens(), sample_ids=("a", "b", "c", "d"))
    part = batch.rows([3, 1])

    assert part.tokens_BT.tolist() == batch.tokens_BT[[3, 1]].tolist()
    assert part.sample_ids == ("d", "b")
