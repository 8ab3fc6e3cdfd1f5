"""Tests of Nearmem, in pytest's processes and in the simulators that they start."""

import gc
import os

# Hardly anything of what the tests make is garbage in cycles. Looking for it after each 700
# objects, as is usual, takes a fifth of the time of a bench.
gc.set_threshold(100_000, 20, 20)

if seconds := os.environ.get("NEARMEM_BENCH_TEST_SECONDS"):
    from hw_tests.watchdog import watch

    watch(int(seconds))
