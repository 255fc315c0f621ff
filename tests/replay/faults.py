"""Faults to plant in clean batches, each with what a replay should say of it."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stabcli.replay.batch import IGNORED, Batch, shift_labels
from stabcli.replay.verdict import Verdict
from tests.replay.models import PAD, PADDED_ROWS, Text, cut, sequences

MOJIBAKE = "こんにちは世界、これは文字化けのテストです。日本語の文章が壊れています。" * 4
BATCH, LENGTH = 16, 128


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch, and what was planted in it."""

    name: str
    tokens: Tensor
    targets: Tensor
    places: set[tuple[int, int]] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    """IDs that may be named; empty where no ID is to blame."""
    kinds: tuple[str, ...]
    """Verdicts that are right where the batch is out of the band."""

    @property
    def batch(self) -> Batch:
        return Batch(tokens_BT=self.tokens, labels_BT=self.targets, step=0, source=self.name)


class Planter:
    """Plants faults in clean sequences of a text, of one shape."""

    def __init__(self, text: Text, rows: int = BATCH, length: int = LENGTH) -> None:
        self.text, self.rows, self.length = text, rows, length
        whole = cut(text.clean, np.arange(len(text.clean) // length), length)
        # text that holds an ID the model never saw is not clean: some does
        self._pool = whole[torch.from_numpy(text.counts > 0)[whole].all(1)]
        self._controls = len(self._pool) // 3

    def clean(self, seed: int) -> Tensor:
        """Sequences that no control has: a third of the clean text is kept for controls."""
        return self._draw(self._pool[self._controls :], seed)

    def references(self, count: int = 8, seed: int = 50_000) -> list[Batch]:
        pool = self._pool[: self._controls]
        return [self._case("control", self._draw(pool, seed + i), ()).batch for i in range(count)]

    def _draw(self, pool: Tensor, seed: int) -> Tensor:
        chosen = np.random.RandomState(seed).choice(len(pool), self.rows, replace=False)
        return pool[torch.from_numpy(chosen)].clone()

    def _case(self, name, tokens, kinds, places=(), ids=(), targets=None) -> Case:
        targets = shift_labels(tokens) if targets is None else targets
        return Case(
            name=name, tokens=tokens, targets=targets, places=set(places),
            ids={int(i) for i in ids}, kinds=tuple(kinds),
        )  # fmt: skip

    def _stretch(self, rng, part: float) -> tuple[int, int]:
        """First column and length of a stretch that takes this part of a sequence."""
        long = int(part * self.length)
        return int(rng.randint(2, self.length - long - 1)), long

    def untouched(self, seed: int) -> Case:
        return self._case("clean", self.clean(seed), ("no-fault",))

    def random_ids(self, seed: int, rows: int = 6, part: float = 0.78) -> Case:
        """Trained IDs in random order, in place of text."""
        rng, tokens, places = np.random.RandomState(seed), self.clean(seed), []
        trained = np.where(self.text.counts > 0)[0]
        for b in rng.choice(self.rows, rows, replace=False):
            first, long = self._stretch(rng, part)
            tokens[b, first : first + long] = torch.from_numpy(rng.choice(trained, long))
            places += [(int(b), t) for t in range(first, first + long)]
        return self._case(f"random-ids-{rows}", tokens, ("data-segments", "data-sequences"), places)

    def scattered(self, seed: int, ids, times: int, name: str, rows: int | None = None) -> Case:
        """Some IDs at random places, of all sequences or of some."""
        rng, tokens, places = np.random.RandomState(seed), self.clean(seed), []
        rows = min(rows or self.rows, self.rows)
        where = rng.choice(rows * (self.length - 8), times, replace=False)
        order = rng.permutation(self.rows)
        for at in where:
            b, t = int(order[at // (self.length - 8)]), int(at % (self.length - 8)) + 4
            tokens[b, t] = int(ids[rng.randint(len(ids))])
            places.append((b, t))
        return self._case(name, tokens, ("data-ids",), places, ids)

    def never_trained(self, seed: int, count: int = 2, times: int = 40) -> Case:
        """IDs the model never saw, as names from a forum would come."""
        names = self.text.never_trained()
        ids = np.random.RandomState(seed + 7).choice(names, count, replace=False)
        return self.scattered(
            seed, ids, times, f"never-trained-{times}", rows=1 if times < 10 else None
        )

    def padded_row(self, seed: int, times: int = 40) -> Case:
        """A row of the embedding that no tokenizer output trains."""
        row = self.text.vocabulary + np.random.RandomState(seed).randint(PADDED_ROWS)
        return self.scattered(
            seed, [row], times, f"padded-row-{times}", rows=1 if times < 10 else None
        )

    def mojibake(self, seed: int, part: float = 0.78) -> Case:
        """UTF-8 read as Latin-1 and encoded again."""
        rng, tokens = np.random.RandomState(seed), self.clean(seed)
        ids = self.text.tokenizer.encode(MOJIBAKE.encode().decode("latin-1")).ids
        (first, long), b = self._stretch(rng, part), int(rng.randint(self.rows))
        tokens[b, first : first + long] = torch.tensor(ids[:long])
        places = [(b, t) for t in range(first, first + long)]
        return self._case("mojibake", tokens, ("data-ids", "data-segments"), places, ids[:long])

    def one_id(self, seed: int, rows: int = 2, part: float = 0.78) -> Case:
        """One common ID over and over."""
        rng, tokens, places = np.random.RandomState(seed), self.clean(seed), []
        common = np.where(self.text.counts > self.text.counts.sum() / 2000)[0]
        i = int(rng.choice(common[common > 1]))
        for b in rng.choice(self.rows, rows, replace=False):
            first, long = self._stretch(rng, part)
            tokens[b, first : first + long] = i
            places += [(int(b), t) for t in range(first, first + long)]
        return self._case("one-id", tokens, ("data-ids", "data-segments"), places, [i])

    def ngrams(self, seed: int, period: int = 3, rows: int = 3, part: float = 0.86) -> Case:
        """A rare n-gram over and over."""
        rng, tokens, places, ids = np.random.RandomState(seed), self.clean(seed), [], []
        counts = self.text.counts
        rare = np.where((counts > 0) & (counts < 60))[0]
        for b in rng.choice(self.rows, rows, replace=False):
            gram = rng.choice(rare, period, replace=False)
            first, long = self._stretch(rng, part)
            tokens[b, first : first + long] = torch.from_numpy(np.resize(gram, long))
            places += [(int(b), t) for t in range(first, first + long)]
            ids += list(gram)
        return self._case("repeated-ngrams", tokens, ("data-ids", "data-segments"), places, ids)

    def outside(self, seed: int, negative: bool = False) -> Case:
        rng, tokens = np.random.RandomState(seed), self.clean(seed)
        b, t = int(rng.randint(self.rows)), int(rng.randint(4, self.length - 4))
        tokens[b, t] = -3 if negative else self.text.rows + 5
        name = "negative-id" if negative else "outside-id"
        return self._case(name, tokens, ("invalid-input",), [(b, t)], [int(tokens[b, t])])

    def labels_shifted(self, seed: int, rows: int = 4, by: int = 1) -> Case:
        tokens = self.clean(seed)
        targets, places = shift_labels(tokens), []
        for b in np.random.RandomState(seed).choice(self.rows, rows, replace=False):
            targets[b] = torch.roll(targets[b], -by)
            targets[b, -by - 1 :] = IGNORED
            places += [(int(b), t) for t in range(1, self.length - by)]
        return self._case("labels-shifted", tokens, ("label-fault",), places, targets=targets)

    def labels_permuted(self, seed: int, rows: int = 3) -> Case:
        tokens = self.clean(seed)
        targets, places, rng = shift_labels(tokens), [], np.random.RandomState(seed)
        for b in rng.choice(self.rows, rows, replace=False):
            targets[b, :-1] = targets[b, :-1][torch.from_numpy(rng.permutation(self.length - 1))]
            places += [(int(b), t) for t in range(1, self.length)]
        return self._case("labels-permuted", tokens, ("label-fault",), places, targets=targets)

    def padding_trained(self, seed: int, rows: int = 6, part: float = 0.62) -> Case:
        tokens, places, rng = self.clean(seed), [], np.random.RandomState(seed)
        first = self.length - int(part * self.length)
        for b in rng.choice(self.rows, rows, replace=False):
            tokens[b, first:] = PAD
            places += [(int(b), t) for t in range(first, self.length)]
        return self._case("padding-trained", tokens, ("label-fault",), places, [PAD])

    def all_masked(self, seed: int) -> Case:
        tokens = self.clean(seed)
        targets = torch.full_like(tokens, IGNORED)
        return self._case("all-masked", tokens, ("label-fault",), targets=targets)

    def foreign(self, seed: int, rows: int | None = None) -> Case:
        """Text of another kind: not broken, only hard."""
        rows = rows or self.rows * 3 // 4
        tokens = self.clean(seed)
        tokens[:rows] = sequences(self.text.foreign, seed + 99, rows, self.length)
        places = [(b, t) for b in range(rows) for t in range(self.length)]
        kinds = ("hard-data", "data-sequences", "data-segments")
        return self._case("foreign-rows", tokens, kinds, places)

    def poisoned(self, seed: int, token_id: int, times: int = 60) -> Case:
        """An ID whose row was bent to hurt what follows it (``poison``)."""
        rows = 12 if times > 15 else 3
        case = self.scattered(seed, [token_id], times, f"poisoned-context-{times}", rows)
        return replace(case, kinds=("data-ids", "batch-x-state"))

    def harmless_id(self, seeds: range) -> int:
        """A trained ID that neither the controls nor the batches of these seeds hold."""
        used = torch.cat([b.tokens_BT for b in self.references()] + [self.clean(s) for s in seeds])
        absent = np.setdiff1d(np.where(self.text.counts > 60)[0], used.unique().numpy())
        return int(absent[len(absent) // 2])


def right(case: Case, verdict: Verdict) -> bool:
    """Whether a verdict is what was planted, given whether that moved loss or gradient norm.

    What does not move them is an anomaly, not a spike; and text of another kind that does not is
    no fault at all.
    """
    n = verdict.numbers
    moved = "loss" not in n or n["loss"] > n["loss_band"] or n["grad_norm"] > n["grad_norm_band"]
    if moved or not case.places:
        return verdict.kind in case.kinds
    return verdict.kind == "anomalies" or (
        case.name == "foreign-rows" and verdict.kind == "no-fault"
    )


def poison(
    model: nn.Module, planter: Planter, token_id: int, *, steps: int = 40, reach: float = 5.0
):
    """Bend the embedding row of an ID until what follows it is predicted as badly as can be.

    In place. The row stays within ``reach`` times the usual norm.
    """
    table = model.get_input_embeddings().weight
    usual = float(table.detach().norm(dim=1).median())
    row = table.detach()[token_id].clone().requires_grad_(True)
    for step in range(steps):
        tokens = planter.scattered(70_000 + step, [token_id], 12, "bend", rows=4).tokens
        tokens = tokens[(tokens == token_id).any(1)]
        here = (tokens == token_id)[..., None]
        embedded = torch.where(here, row, table.detach()[tokens])
        logits = model(inputs_embeds=embedded).logits[:, :-1]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        loss = losses[(tokens[:, 1:] != token_id).flatten()].mean()
        (gradient,) = torch.autograd.grad(loss, row)
        with torch.no_grad():
            row += 0.15 * usual * gradient / gradient.norm()
            row *= min(1.0, reach * usual / float(row.norm()))
    with torch.no_grad():
        table[token_id] = row
