"""Runs a Python program that uses PyTorch's CUDA devices and backend nccl on a machine without a GPU."""

import argparse
import importlib.util
import os
import sys

from libnccl_cpu import cuda, preload

# Passes the program's file, or the module's name, to spawned processes, in whose sys.argv Python puts the file of this module.
_PROGRAM = "_LIBNCCL_CPU_PROGRAM"
_MODULE = "_LIBNCCL_CPU_MODULE"


def _run(namespace):
    """Runs the program as the module with these globals: processes that it spawns import this module again, and so have
    CUDA's operators too."""
    if namespace["__name__"] == "__main__":
        _prepare()
    import torch

    if torch.version.cuda is None:
        sys.exit(f"libnccl_cpu.torch needs a PyTorch for CUDA; {torch.__version__} is one without")
    from libnccl_cpu import cuda_operators

    cuda_operators.install()
    program, package = os.environ[_PROGRAM], None
    if module := os.environ.get(_MODULE):
        spec = _find_module(module)
        code, package = spec.loader.get_code(spec.name), spec.parent
    else:
        with open(program, "rb") as file:
            code = compile(file.read(), program, "exec", dont_inherit=True)
    for name in [name for name in namespace if not name.startswith("__")]:
        del namespace[name]
    namespace.update(__file__=program, __doc__=None, __package__=package)
    exec(code, namespace)


def _find_module(name):
    """Returns the spec of a module, or of a package's __main__; None if there is none that can be run."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
    except ModuleNotFoundError:
        return None
    return spec if spec is not None and hasattr(spec.loader, "get_code") else None


def _prepare():
    """Reads the command line, and starts Python again if the libraries are not preloaded."""
    parser = argparse.ArgumentParser("python3 -m libnccl_cpu.torch", description=__doc__, allow_abbrev=False)
    parser.add_argument("--races", choices=["off", "report", "error"], help="what to do about missing synchronization")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the order of operations from this number")
    parser.add_argument("--strict", action="store_true", help="find programs that only work because nothing is under load")
    parser.add_argument("--devices", type=int, metavar="N", help="the number of devices; 8 without it")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as with python3 -m")
    parser.add_argument("program", help="the program's file, or with -m the module's name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"libnccl_cpu.torch runs programs that use PyTorch, which is not installed for {sys.executable}")
    module = _find_module(given.program) if given.is_module else None
    if given.is_module and module is None:
        parser.error(f"no module {given.program} that can be run")
    if not given.is_module and not os.path.isfile(given.program):
        parser.error(f"no file {given.program}")
    variables = {"RACES": given.races, "SEED": given.seed, "STRICT": given.strict or None, "DEVICES": given.devices}
    for name, value in variables.items():
        if value is not None:
            os.environ["LIBNCCL_CPU_" + name] = str(int(value) if value is True else value)
    # Keeps libraries that other programs, such as `nccl run --cpu`, preload.
    there = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    names = [os.path.basename(path) for path in there]
    missing = [path for path in preload() if os.path.basename(path) not in names]
    if missing:
        if any(character in path for path in missing for character in " :"):
            sys.exit(f"{missing[0]} cannot be preloaded: its path has a blank or a colon")
        os.environ["LD_PRELOAD"] = ":".join(missing + there)
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [cuda(), os.environ.get("LD_LIBRARY_PATH")]))
        sys.stdout.flush()
        again = getattr(sys, "orig_argv", [sys.executable, "-m", "libnccl_cpu.torch", *sys.argv[1:]])
        os.execv(sys.executable, [sys.executable, *again[1:]])
    program = module.origin if module else given.program
    sys.argv = [program, *given.arguments]
    os.environ[_PROGRAM] = os.path.abspath(program)
    if module:
        os.environ[_MODULE] = given.program
        return
    os.environ.pop(_MODULE, None)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(given.program))


if __name__ in ("__main__", "__mp_main__"):
    _run(globals())
