"""Becomes ``python ARGV``, on ranks other than 0 a little later.

A rank that looks for rank 0 before that listens looks again only 10 seconds later: of OneFlow
0.9.0's starts on one machine every second one took so long.
"""

import os
import sys
import time

AFTER = 0.5  # seconds

if __name__ == "__main__":
    if os.environ.get("RANK", "0") != "0":
        time.sleep(AFTER)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])
