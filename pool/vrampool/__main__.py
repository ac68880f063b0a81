"""`python -m vrampool` is the command `vrampool`."""

from vrampool.cli import main

if __name__ == "__main__":
    main()
