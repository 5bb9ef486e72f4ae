"""Runs a public test suite from installed packages and compares each test's result with a list.

    python3 -m libnccl_cpu.torch run.py SUITE LIST COLUMN [--only REGEX] [--jobs N] [--log DIRECTORY] [--write]

A list has a line per test, with tabs between its name and its results. The first line names the columns. A result is `pass`,
`skip: REASON` with the suite's reason, `fail: REASON` with ours, or empty if the test does not exist in that column. The exit status is 1 if
a result differs. `--write` writes the results into the list instead; the reasons of failures that were expected stay."""

import argparse
import importlib
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest

_ENVIRONMENT = {
    # As on a GPU, a program detects by its own time limits that a peer has failed.
    "LIBNCCL_CPU_FAILURES": "wait",
    # PyTorch's test_ddp_uneven_inputs needs more than the default, an eighth of half of the host's memory.
    "LIBNCCL_CPU_DEVICE_MEMORY": "4G",
    # `torch.cuda.is_available` does not initialize CUDA, after which this process could not fork.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="a module of this directory")
    parser.add_argument("list", help="the file of expected results")
    parser.add_argument("column", help="the name of the column of the list")
    parser.add_argument("--only", default="", help="run only the tests that this expression matches")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for a test")
    parser.add_argument("--log", help="keep the output of each test in this directory")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    log = given.log or tempfile.mkdtemp()
    os.makedirs(log, exist_ok=True)

    os.environ.update(_ENVIRONMENT)
    tests = importlib.import_module(given.suite).tests(given.column)
    chosen = {name: test for name, test in tests.items() if re.search(given.only, name)}
    begin = time.monotonic()
    results = run(chosen, given.jobs, given.timeout, log)
    table = read(given.list)
    expected = {name: row.get(given.column, "") for name, row in table.items()}
    wrong = {name for name in chosen if not agrees(results[name], expected.get(name, ""))}
    if not given.write:
        # On a busy machine, tests with time limits fail: they are retried, one after another.
        results.update(run({name: chosen[name] for name in sorted(wrong)}, 1, given.timeout, log))
        wrong = {name for name in wrong if not agrees(results[name], expected.get(name, ""))}
    counts = [sum(result.startswith(kind) for result in results.values()) for kind in ("pass", "skip", "fail")]
    print("{}, {}: {} passed, {} skipped, {} failed, in {:.0f} s".format(
        given.suite, given.column, *counts, time.monotonic() - begin
    ))
    if given.write:
        for name in wrong:
            table.setdefault(name, {})[given.column] = results[name]
        write(given.list, table, given.column)
        return 0
    for name in sorted(wrong):
        print(f"{name}: {results[name]}; expected {expected.get(name) or 'no such test'}; its output is {os.path.join(log, name)}")
    missing = sorted(name for name, result in expected.items() if result and name not in tests)
    for name in missing:
        print(f"{name}: in the list, but not in the suite")
    return bool(wrong or missing)


def agrees(result, expected):
    """Returns whether a result is as expected. Reasons of failures are not compared, because a suite's reasons may contain addresses."""
    return result == expected or result.startswith("fail") and expected.startswith("fail")


def read(path):
    """Returns the results by test and column."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        (_, *columns), *rows = (line.rstrip("\n").split("\t") for line in file)
    return {name: dict(zip(columns, results)) for name, *results in rows}


def write(path, table, column):
    columns = sorted({column, *(name for row in table.values() for name in row)})
    rows = [["test", *columns], *([name, *(row.get(column, "") for column in columns)] for name, row in sorted(table.items()))]
    with open(path, "w") as file:
        file.writelines("\t".join(row) + "\n" for row in rows)


def run(tests, jobs, timeout, log):
    """Runs each test in a process group forked from this process, which has imported the suite."""
    waiting, running, results = list(tests.items()), {}, {}
    signal.signal(signal.SIGTERM, lambda *_: (list(map(kill_group, running)), os._exit(143)))
    while waiting or running:
        while waiting and len(running) < jobs:
            name, test = waiting.pop(0)
            running[start(test, os.path.join(log, name))] = (name, time.monotonic())
        time.sleep(0.05)
        for pid, (name, begin) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() - begin < timeout:
                continue
            # Ranks that a test leaves behind are killed with it.
            kill_group(pid)
            if not ended:
                os.waitpid(pid, 0)
            del running[pid]
            results[name] = result(os.path.join(log, name), f"no end after {timeout} s" if not ended else f"status {status}")
            print(f"{time.monotonic() - begin:4.0f} s  {name}: {results[name]}", flush=True)
    return results


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def start(test, log):
    if os.path.exists(log + ".result"):
        os.remove(log + ".result")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        text = "pass"
        test()
    except unittest.SkipTest as skipped:
        text = f"skip: {skipped}"
    except BaseException as error:
        traceback.print_exc()
        text = f"fail: {type(error).__name__}: {error}"
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log + ".result", "w") as file:
        file.write(" ".join(text.split())[:200])
    os._exit(0)


def result(log, otherwise):
    try:
        with open(log + ".result") as file:
            text = file.read()
        os.remove(log + ".result")
        return text
    except FileNotFoundError:
        return f"fail: {otherwise}"


def of_cases(cases):
    """Returns the tests of unittest classes, as functions that return, or raise a test's exception."""

    def function(case, method):
        def test():
            outcome = unittest.TestResult()
            unittest.TestSuite([case(method)]).run(outcome)
            for _, text in outcome.errors + outcome.failures:
                print(text)
            if outcome.skipped:
                raise unittest.SkipTest(outcome.skipped[0][1])
            if not outcome.wasSuccessful():
                last = [text for _, text in outcome.errors + outcome.failures][0].strip().splitlines()
                raise AssertionError(last[-1])

        return test

    names = unittest.TestLoader().getTestCaseNames
    return {f"{case.__name__}.{name}": function(case, name) for case in cases for name in names(case)}


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.modules["run"] = sys.modules["__main__"]
    sys.exit(main())
