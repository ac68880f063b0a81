"""`python -m vrampool_worker`: one worker on one device, with the settings of the environment."""

import sys

from vrampool_worker.serving import main

if __name__ == "__main__":
    sys.exit(main())
