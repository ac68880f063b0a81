"""`python -m benchmarks.sweep`. Children of multiprocessing import this file again, so it loads nothing by itself."""

import sys

if __name__ == "__main__":
    from benchmarks.sweep.command import main

    sys.exit(main())
