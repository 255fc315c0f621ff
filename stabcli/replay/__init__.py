"""Replay: run a flagged batch again and say which of its tokens did it. The only part with torch.

Shapes are said in names: ``B`` sequences, ``T`` positions of a sequence, ``S`` = ``T`` + 1 columns
(the tokens and the last target), ``V`` rows of the embedding, ``D`` width, ``N`` positions flattened.
"""
