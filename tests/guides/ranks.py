"""A rank of a program in Python, started by `nccl run`: it adds up the numbers of all ranks with nccl4py."""

import os
import socket
import time

import nccl.core as nccl
import numpy as np
from cuda.core import Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def exchange_id():
    if rank == 0:
        unique_id = nccl.get_unique_id()
        with socket.create_server(address, backlog=size) as server:
            for _ in range(size - 1):
                with server.accept()[0] as peer:
                    peer.sendall(unique_id.as_bytes)
        return unique_id
    while True:
        try:
            with socket.create_connection(address, timeout=30) as root:
                return nccl.UniqueId.from_bytes(root.recv(128, socket.MSG_WAITALL))
        except ConnectionRefusedError:
            time.sleep(0.05)


def floats(buffer):
    return StridedMemoryView.from_buffer(buffer, shape=(4,), dtype=np.dtype(np.float32))


device = Device(int(os.environ["LOCAL_RANK"]))
device.set_current()
stream = device.create_stream()
comm = nccl.Communicator.init(nranks=size, rank=rank, unique_id=exchange_id())
assert (comm.team_world.n_ranks, comm.team_world.rank) == (size, rank), comm.team_world
buffer = device.allocate(16, stream=stream)
buffer.fill(np.float32(rank + 1), stream=stream)
comm.allreduce(floats(buffer), floats(buffer), nccl.SUM, stream=stream)
host = LegacyPinnedMemoryResource().allocate(16)
buffer.copy_to(host, stream=stream)
stream.sync()
print(np.from_dlpack(host).view(np.float32)[0])
comm.destroy()
