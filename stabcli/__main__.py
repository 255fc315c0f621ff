"""``python -m stabcli``."""


def main() -> None:
    """Run the command line."""
    raise SystemExit(2)


if __name__ == "__main__":
    main()
