"""Bytes of a file, damaged in the ways in which files are: for tests of readers."""


def mutated(data, dice):
    """Some bytes, changed in one to four places."""
    hurt = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(hurt)) if hurt else 0
        kind = dice.choice(["flip", "byte", "cut", "tail", "insert", "copy", "zeros", "number"])
        if kind == "flip" and hurt:
            hurt[at] ^= 1 << dice.randrange(8)
        elif kind == "byte" and hurt:
            hurt[at] = dice.choice([0, 9, 10, 34, 44, 123, 125, 127, 128, 255])
        elif kind == "cut":
            del hurt[at : at + dice.randint(1, 200)]
        elif kind == "tail":
            del hurt[at:]
        elif kind == "insert":
            hurt[at:at] = dice.randbytes(dice.randint(1, 30))
        elif kind == "copy":
            hurt[at:at] = hurt[at : at + dice.randint(1, 300)]
        elif kind == "zeros":
            size = dice.randint(1, 600)
            hurt[at : at + size] = bytes(min(size, len(hurt) - at))
        else:
            hurt[at : at + 4] = dice.choice([b"9" * 30, b"-1e999", b"\xff" * 8, b"null", b"[[[["])
    return bytes(hurt)
