"""Mistakes of programs that use torch.distributed with backend nccl: each makes the program fail, and is reported.

    mistakes.py COMMAND...    runs all, each with the command that starts two ranks of a program

A rank of a job runs the mistake that its argument names."""

import datetime
import os
import subprocess
import sys
import time

# The expected parts of the output.
NAMES = {
    "nothing": None,
    "result_read_before_the_wait": "race in allocation",
    "result_read_on_another_stream": "race in allocation",
    "freed_under_a_copy_of_another_stream": "race in allocation",
    "other_order": "the ranks called different functions",
    "other_shape": "rank 0 called ncclAllReduce(count 1000",
    "other_type": "the ranks called ncclAllReduce with different data types",
    "missing_rank": "rank 0 of 2 still waits in call 2, ncclAllReduce",
    "dead_rank": "rank 1 died",
}


def main(command):
    failed = 0
    for name, text in NAMES.items():
        # PyTorch waits four times as long before it ends a process whose collective failed.
        environment = dict(os.environ, LIBNCCL_CPU_RACES="error", TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000")
        begin = time.monotonic()
        run = subprocess.run(
            [*command, __file__, name], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        is_right = run.returncode != 0 and text in run.stdout if text else run.returncode == 0 and "race" not in run.stdout
        failed += not is_right
        print(f"{name}: exit status {run.returncode}, {time.monotonic() - begin:.0f} s", flush=True)
        if not is_right:
            print(f"{run.stdout}\nFAILED {name}: expected {'a failure, and' if text else 'success, not'} {text or 'a race'!r}", flush=True)
    print(f"{len(NAMES) - failed} of {len(NAMES)} passed")
    return failed > 0


def rank_with(mistake):
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), 1 << 20
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))

    def filled(value, size=size, dtype=torch.float32):
        tensor = torch.empty(size, dtype=dtype, device=device)
        tensor.copy_(torch.full((size,), value, dtype=dtype))
        return tensor

    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=20), device_id=device)
    tensor = filled(1)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if mistake == "result_read_before_the_wait":
        work = dist.all_reduce(tensor, async_op=True)
        print(tensor.cpu()[0])
        work.wait()
    elif mistake == "result_read_on_another_stream":
        host = torch.empty(size).pin_memory()
        with torch.cuda.stream(torch.cuda.Stream()):
            host.copy_(tensor, non_blocking=True)
        dist.all_reduce(tensor)
    elif mistake == "freed_under_a_copy_of_another_stream":
        host, stream, used = torch.empty(size).pin_memory(), torch.cuda.Stream(), filled(5)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            host.copy_(used, non_blocking=True)
        del used  # Without record_stream, the next tensor has its memory.
        tensor = filled(7)
    elif mistake == "other_order":
        calls = [lambda: dist.all_reduce(filled(1)), lambda: dist.broadcast(filled(1), 0)]
        for call in calls if rank == 0 else reversed(calls):
            call()
    elif mistake == "other_shape":
        dist.all_reduce(filled(1, size=1000 + rank))
    elif mistake == "other_type":
        dist.all_reduce(filled(1, dtype=torch.float32 if rank == 0 else torch.float16))
    elif mistake == "missing_rank" and rank == 0:
        dist.all_reduce(tensor)
    elif mistake == "missing_rank":
        time.sleep(15)
        sys.exit()
    elif mistake == "dead_rank" and rank == 1:
        os._exit(0)
    elif mistake == "dead_rank":
        time.sleep(1)
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    tensor.cpu()
    dist.destroy_process_group()


if "RANK" in os.environ:
    rank_with(sys.argv[1])
else:
    sys.exit(main(sys.argv[1:]))
