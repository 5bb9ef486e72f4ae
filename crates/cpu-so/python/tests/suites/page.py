"""Prints docs/conformance.md, from the lists of this directory."""

import collections
import os

import run

LISTS = [
    ("PyTorch 2.10.0 `DistributedTest`", "pytorch", "pytorch-2.10.0.tsv"),
    ("PyTorch 2.15.0 `DistributedTest`", "pytorch", "pytorch-2.15.0.tsv"),
    ("torchft 2026.10.26, its process groups", "torchft_groups", "torchft.tsv"),
    ("accelerate 1.15.0, `test_utils/scripts`", "accelerate_scripts", "accelerate.tsv"),
]
HEAD = """# Conformance

The results of public test suites on the CPU backend and the [CUDA emulation](no-gpu.md), without a GPU. The suites are unmodified.
`.ci/run suites` runs them every night, compares each test with a list in `crates/cpu-so/python/tests/suites`, and generates this page.
A change in either direction fails.

`RUN` is `python3 -m libnccl_cpu.torch run.py`, in that directory. `LIBNCCL_CPU_FAILURES` is `wait`.

| suite | with | passed | skipped | failed | command |
|---|---|---|---|---|---|
"""
MANUAL = """
Run manually on 2026-11-28, with commit cdf42f73 and tests from a copy of PyTorch's repository:

| suite | with | passed | skipped | failed |
|---|---|---|---|---|
| PyTorch 2.4.0 `test_c10d_nccl.py` | up to 4 ranks | 173 | 4 | 11 |
| PyTorch 2.4.0 `test_nccl.py` | 4 devices | 12 | 0 | 0 |
| PyTorch 2.4.0 FSDP, FSDP2, DDP hooks, ZeRO, tensor parallel, DTensor | up to 4 ranks | 140 | 1 | 12, 4 of them by time limits |
| PyTorch 2.4.0 `pipelining/test_schedule.py` | 2 ranks | 12 | 0 | 0 |
"""


def main():
    print(HEAD, end="")
    failures = collections.defaultdict(list)
    for suite, module, name in LISTS:
        table = run.read(os.path.join(os.path.dirname(os.path.abspath(__file__)), name))
        for column in dict.fromkeys(column for row in table.values() for column in row):
            results = {test: row[column] for test, row in table.items() if row.get(column)}
            counts = [sum(result.startswith(kind) for result in results.values()) for kind in ("pass", "skip", "fail")]
            variable = column.partition(", ")[2]
            command = f"{variable} RUN".strip() + f' {module} {name} "{column}"'
            print(f"| {suite} | {column} | {counts[0]} | {counts[1]} | {counts[2]} | `{command}` |")
            for test, result in results.items():
                kind, _, reason = result.partition(": ")
                if kind == "fail" or reason.startswith("not run"):
                    failures[reason, suite].append(test)
    print("\n## Failed or not run\n\n| tests | of | why |\n|---|---|---|")
    for (reason, suite), tests in failures.items():
        tests = list(dict.fromkeys(tests))
        names = ", ".join(f"`{test}`" for test in tests[:2]) + (f" and {len(tests) - 2} more" if len(tests) > 2 else "")
        print(f"| {names} | {suite.partition(' `')[0].rstrip(',')} | {reason} |")
    print("\nThe other skipped tests are skipped by their own conditions, which the lists name. PyTorch 2.15 uses a new implementation, nccl2, for")
    print("backend `nccl`; `TORCH_DIST_USE_NCCL2=0` selects the old one, for which the suite was written.")
    print(MANUAL, end="")


main()
