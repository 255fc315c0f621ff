"""Data sets on disk: which tokens a sample number stands for.

``--data PATH,KEY=VALUE,…``: the path and what is known of the order. Files are mapped, never read
whole. Three kinds: raw token IDs one after the other (nanoGPT's ``.bin``, OLMo's ``.npy``), and
Megatron's ``.bin`` beside its ``.idx`` with the shuffle indices it keeps in its cache, alone or several
blended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stabcli.errors import ReplayError
from stabcli.replay.batch import Batch

DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
MEGATRON_TYPES = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64,
    7: np.float32, 8: np.uint16,
}  # fmt: skip
"""Codes of types in an ``.idx``. Source: Megatron-LM core/datasets/indexed_dataset.py."""
MAGIC = b"MMIDIDX\x00\x00"
KEYS = ("length", "batch", "dtype", "order", "seed", "first", "indices", "rows", "blend", "weights")
MOST_BLENDED = 1 << 22
"""Samples up to which a blend is worked out from its weights, one by one: some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """``--data``, taken apart."""

    paths: tuple[Path, ...]
    """The file, or several joined by ``+``."""
    values: Mapping[str, str]
    """What else was said."""

    def whole(self, key: str, usual: int | None = None) -> int:
        """Return a whole number that was given, or what is usual.

        Raises:
            ReplayError: It is none, or it was not given and nothing is usual.
        """
        text = self.values.get(key)
        if text is None:
            if usual is None:
                raise ReplayError(f"--data: {key} is needed: add ,{key}=N")
            return usual
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise ReplayError(f"--data: {key}={text}: not a whole number") from None
        if value < (1 if key in ("length", "batch") else 0):
            raise ReplayError(f"--data: {key}={text}: too small")
        return value


def parse_spec(text: str) -> Spec:
    """Take ``PATH,KEY=VALUE,…`` apart.

    Raises:
        ReplayError: A part is no KEY=VALUE, or the key is unknown.
    """
    path, *parts = text.split(",")
    values = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or key not in KEYS:
            raise ReplayError(f"--data: {part!r}: not one of {', '.join(k + '=' for k in KEYS)}")
        values[key] = value
    if not path:
        raise ReplayError("--data: no file named: write PATH,length=N,batch=N")
    return Spec(paths=tuple(Path(p) for p in path.split("+")), values=values)


Sample = Callable[[int], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Samples by number."""

    samples: int
    """How many there are."""
    sample: Sample
    """The token IDs of one, int64: ``length`` + 1 of them where the last target is known."""
    length: int
    """Positions of a sample."""
    targets: bool
    """Whether a sample holds the target of its last position too."""
    shown: str
    """The file, for messages."""
    wraps: bool = True
    """Whether they are taken from the first again after the last; Megatron's indices hold all epochs."""

    def batch(self, rows: Sequence[int], step: int) -> Batch:
        """Return the batch of these samples.

        Raises:
            ReplayError: There is no such sample.
        """
        outside = [row for row in rows if not 0 <= row < self.samples]
        if outside:
            raise ReplayError(
                f"{self.shown}: step {step} wants sample {outside[0]:,}, there are"
                f" {self.samples:,}: check batch=, order= and first="
            )
        tokens = torch.from_numpy(np.stack([self.sample(int(row)) for row in rows]))
        labels_BT = None
        if self.targets:
            labels_BT = tokens[:, 1:].contiguous()
            tokens = tokens[:, :-1].contiguous()
        return Batch(
            tokens_BT=tokens,
            labels_BT=labels_BT,
            sample_ids=tuple(str(row) for row in rows),
            step=step,
            source=f"{self.shown}, {len(rows)} samples of step {step}",
        )


def open_data(spec: Spec) -> DataSet:
    """Open the files of a spec.

    Raises:
        ReplayError: One does not exist, is damaged, or too short.
    """
    bases = [p.with_suffix("") if p.suffix in (".bin", ".idx") else p for p in spec.paths]
    if Path(f"{bases[0]}.idx").is_file():
        prefixes = spec.values["indices"].split("+") if "indices" in spec.values else []
        if len(bases) > 1 or "blend" in spec.values or "weights" in spec.values:
            return _blended(bases, prefixes, spec)
        return _megatron(bases[0], prefixes[0] if prefixes else None, spec)
    for path in spec.paths:
        if not path.is_file():
            raise ReplayError(f"{path}: no such file: check --data")
    return _stream(spec)


def _stream(spec: Spec) -> DataSet:
    """Token IDs one after the other; each file by itself is cut into samples."""
    name = spec.values.get("dtype", "uint16")
    if name not in DTYPES:
        raise ReplayError(f"--data: dtype={name}: one of {', '.join(DTYPES)}")
    length = spec.whole("length")
    olmo = spec.paths[0].suffix == ".npy"
    files, counts = [], []
    for path in spec.paths:
        tokens = _mapped(path, np.dtype(name))
        # the last target of a nanoGPT sample is the next token; an OLMo instance stands alone
        files.append(tokens)
        counts.append(len(tokens) // length if olmo else (len(tokens) - 1) // length)
    starts = np.cumsum([0, *counts])
    if not starts[-1]:
        raise ReplayError(f"{spec.paths[0]}: shorter than one sample of {length} tokens")

    def sample(number: int) -> np.ndarray:
        file = int(np.searchsorted(starts, number, side="right")) - 1
        begin = (number - int(starts[file])) * length
        part = files[file][begin : begin + length + (0 if olmo else 1)]
        return part.astype(np.int64)

    return DataSet(
        samples=int(starts[-1]),
        sample=sample,
        length=length,
        targets=not olmo,
        shown=str(spec.paths[0]),
    )


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """Map a raw file; a real ``.npy`` header is refused rather than read as tokens."""
    size = path.stat().st_size
    if not size:
        raise ReplayError(f"{path}: empty: give the token IDs that were trained on")
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            return np.asarray(load_npy(path)).ravel()
    if size % dtype.itemsize:
        raise ReplayError(
            f"{path}: {size:,} bytes are no whole number of {dtype}: add ,dtype=uint32"
        )
    return np.memmap(path, dtype=dtype, mode="r")


def load_npy(path: Path) -> np.ndarray:
    """Map an array that ``numpy.save`` wrote, never its pickles.

    Raises:
        ReplayError: It is none, or holds objects.
    """
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ReplayError(f"{path}: no such file: check --data") from None
    except ValueError as error:
        why = "pickled objects" if "pickle" in str(error) else str(error)[:80]
        raise ReplayError(f"{path}: {why}: give plain integers as numpy.save writes them") from None
    return found


def _blended(bases: list[Path], prefixes: list[str], spec: Spec) -> DataSet:
    """Several of Megatron's data sets in the turns that its BlendedDataset takes."""
    if len(prefixes) != len(bases):
        raise ReplayError(
            f"{bases[0]}: {len(bases)} data sets are blended and {len(prefixes)} have indices: join"
            " them in the same order: ,indices=CACHE/<hash>-GPTDataset-train+CACHE/<hash>-…"
        )
    parts = [_megatron(b, p, spec) for b, p in zip(bases, prefixes, strict=True)]
    blend = spec.values.get("blend")
    if blend is None:
        turns = _turns(spec.values.get("weights"), len(parts))
        count = 1 << 62  # as many as the data sets give
    else:
        which, own = (
            load_npy(Path(f"{blend}-{name}.npy"))
            for name in ("dataset_index", "dataset_sample_index")
        )
        if which.ndim != 1 or which.shape != own.shape:
            raise ReplayError(f"{blend}: not the indices of a blend: check blend=")
        count = len(which)

        def turns(number: int) -> tuple[int, int]:
            return int(which[number]), int(own[number])

    def sample(number: int) -> np.ndarray:
        part, place = turns(number)
        if not 0 <= part < len(parts):
            raise ReplayError(f"{blend}: names data set {part}, there are {len(parts)}: lacks one?")
        if not 0 <= place < parts[part].samples:
            raise ReplayError(
                f"{parts[part].shown}: the blend wants its sample {place:,}, there are"
                f" {parts[part].samples:,}: check the order of the data sets, and weights= or blend="
            )
        return parts[part].sample(place)

    shown = "+".join(str(base) for base in bases)
    return DataSet(
        samples=count, sample=sample, length=parts[0].length, targets=True, shown=shown, wraps=False
    )


def _turns(text: str | None, count: int) -> Callable[[int], tuple[int, int]]:
    """Which data set a sample of a blend is of, and its number there, from the weights.

    Each sample goes to the data set that is furthest behind its part of all so far, the first of
    equals. Source: Megatron-LM core/datasets/helpers.cpp, build_blending_indices.
    """
    try:
        weights = np.array([float(w) for w in (text or "").split("+")])
    except ValueError:
        weights = np.array([])
    if len(weights) != count or not (np.isfinite(weights) & (weights > 0)).all():
        raise ReplayError(
            f"--data: weights={text or ''}: how were the {count} data sets blended? add ,blend=CACHE/"
            "<hash>-BlendedDataset-train, or their weights joined by +: ,weights=0.3+0.7"
        )
    weights = weights / weights.sum()
    taken = np.zeros(count, np.int64)
    found: list[tuple[int, int]] = []

    def turns(number: int) -> tuple[int, int]:
        if number >= MOST_BLENDED:
            raise ReplayError(
                f"--data: sample {number:,} of a blend is too far to work out from weights=: give"
                " ,blend=CACHE/<hash>-BlendedDataset-train"
            )
        while len(found) <= number:
            part = int(np.argmax(weights * max(len(found), 1) - taken))
            found.append((part, int(taken[part])))
            taken[part] += 1
        return found[number]

    return turns


def _megatron(base: Path, prefix: str | None, spec: Spec) -> DataSet:
    """Sequences of an indexed data set, in the samples that Megatron's GPTDataset makes of them."""
    index = Path(f"{base}.idx")
    if not index.is_file():
        raise ReplayError(f"{index}: no such file: check --data")
    lengths, pointers, dtype = _index(index)
    tokens = Path(f"{base}.bin")
    if not tokens.is_file():
        raise ReplayError(f"{tokens}: no such file: it belongs beside {index.name}")
    stream = _mapped(tokens, dtype)
    if len(lengths) and int((pointers // dtype.itemsize + lengths).max()) > len(stream):
        raise ReplayError(f"{tokens}: shorter than {index.name} says: is it half written?")
    length = spec.whole("length")
    if prefix is None:
        raise ReplayError(
            f"{base}: Megatron shuffles by indices it keeps in its cache: add"
            " ,indices=CACHE/<hash>-GPTDataset-train"
        )
    documents, samples, shuffle = (
        load_npy(Path(f"{prefix}-{name}.npy"))
        for name in ("document_index", "sample_index", "shuffle_index")
    )
    if samples.ndim != 2 or samples.shape[1] != 2 or documents.ndim != 1 or shuffle.ndim != 1:
        raise ReplayError(f"{prefix}: not Megatron's indices: check indices=")

    def document(position: int) -> np.ndarray:
        number = int(documents[position])
        if not 0 <= number < len(lengths):
            raise ReplayError(f"{prefix}: names document {number:,}: not the indices of {base}")
        begin = int(pointers[number]) // dtype.itemsize
        found: np.ndarray = stream[begin : begin + int(lengths[number])]
        return found

    def sample(number: int) -> np.ndarray:
        place = int(shuffle[number])
        if not 0 <= place < len(samples) - 1:
            raise ReplayError(f"{prefix}: names sample {place:,}: not the indices of {base}")
        (first, begin), (last, end) = samples[place].tolist(), samples[place + 1].tolist()
        if first == last:
            found = document(first)[begin : end + 1]
        else:
            middle = [document(i) for i in range(first + 1, last)]
            found = np.concatenate([document(first)[begin:], *middle, document(last)[: end + 1]])
        if len(found) != length + 1:
            raise ReplayError(
                f"{prefix}: sample {number:,} has {len(found) - 1:,} positions, not {length:,}:"
                " check length="
            )
        return found.astype(np.int64)

    return DataSet(
        samples=len(shuffle),
        sample=sample,
        length=length,
        targets=True,
        shown=str(base),
        wraps=False,
    )


def _index(path: Path) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    """Lengths and byte offsets of the sequences of an ``.idx``, and the type of its tokens.

    Source: Megatron-LM core/datasets/indexed_dataset.py.
    """
    raw = (
        np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    )
    if len(raw) < 34 or raw[:9].tobytes() != MAGIC:
        raise ReplayError(f"{path}: not an index of Megatron's: it does not begin with MMIDIDX")
    version, code = int(raw[9:17].view("<u8")[0]), int(raw[17])
    count = int(np.frombuffer(raw[18:26].tobytes(), "<u8")[0])
    if version != 1 or code not in MEGATRON_TYPES or np.dtype(MEGATRON_TYPES[code]).kind == "f":
        raise ReplayError(f"{path}: version {version}, type {code}: not token IDs of version 1")
    if 34 + 12 * count > len(raw):
        raise ReplayError(f"{path}: shorter than its {count:,} sequences: is it half written?")
    lengths = np.frombuffer(raw[34 : 34 + 4 * count].tobytes(), "<i4").astype(np.int64)
    pointers = np.frombuffer(raw[34 + 4 * count : 34 + 12 * count].tobytes(), "<i8")
    return lengths, pointers, np.dtype(MEGATRON_TYPES[code])
