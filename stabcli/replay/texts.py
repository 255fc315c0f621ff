"""Token IDs as text, where there is a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint_hf import quiet

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
MOST = 64
"""Characters of a token that are shown."""


class Texts:
    """Turns token IDs into text; without a tokenizer, into nothing.

    Args:
        path: A tokenizer.json, or a folder with one.

    Raises:
        ReplayError: There is no tokenizer there, or it needs code of its own.
    """

    def __init__(self, path: Path | None) -> None:
        self.size: int | None = None
        self.pad_id: int | None = None
        self._decode: Any = None
        if path is None:
            return
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            if file.suffix == ".json" and file.is_file():
                from tokenizers import Tokenizer

                own = Tokenizer.from_file(str(file))
                self.size = own.get_vocab_size(with_added_tokens=True)
                self.pad_id = next(
                    (i for name in ("<pad>", "[PAD]", "<|pad|>") if (i := own.token_to_id(name))),
                    None,
                )
                self._decode = lambda i: own.decode([i], skip_special_tokens=False)
                return
            from transformers import AutoTokenizer

            with quiet():
                theirs = AutoTokenizer.from_pretrained(
                    str(path), local_files_only=True, trust_remote_code=False
                )
        except Exception as error:  # each tokenizer library has errors of its own
            why = " ".join(str(error).split())[:120]
            raise ReplayError(f"--tokenizer {path}: cannot be read: {why}") from None
        self.size, self.pad_id = len(theirs), theirs.pad_token_id
        self._decode = lambda i: theirs.decode([i])

    def __call__(self, token_id: int) -> str | None:
        """Return the text of an ID; None where nothing is known of it."""
        if self._decode is None or self.size is None or not 0 <= token_id < self.size:
            return None
        return str(self._decode(token_id))[:MOST]


def beside(checkpoint: Path) -> Path | None:
    """Return the folder of a checkpoint where it holds a tokenizer too."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    return folder if any((folder / name).is_file() for name in FILES) else None
