"""Checks every field of the recordings that four ranks of ranks.py leave: check_recordings.py DIRECTORY."""

import json
import pathlib
import sys
import time

SIZE = 4
directory = pathlib.Path(sys.argv[1])
names = sorted(file.name for file in directory.iterdir())
assert names == [f"rank{rank}.json" for rank in range(SIZE)], names
recordings = [json.loads((directory / name).read_text()) for name in names]
now = time.time_ns()


def is_recent(time_ns):
    return now - 3600e9 < time_ns <= now


ids, processes = set(), set()
for rank, recording in enumerate(recordings):
    assert recording.pop("format") == "libnccl recorder"
    assert recording.pop("version") == 1
    assert recording.pop("reason") == "exit"
    assert recording.pop("nccl") == "2.32.3"
    written = recording.pop("time_ns")
    assert is_recent(written), written
    processes.add(recording.pop("process"))
    library = recording.pop("library")
    assert library["path"].endswith("/libnccl.so.2") and library["build_id"], library
    (communicator,) = recording.pop("communicators")
    assert not recording, recording
    ids.add(communicator.pop("id"))
    (record,) = communicator.pop("records")
    expected = {"name": None, "size": SIZE, "rank": rank, "memory": "device", "state": "ended", "count": 1}
    assert communicator == {**expected, "capacity": 1024}, communicator
    queued, stream = record.pop("queued_ns"), record.pop("stream")
    assert is_recent(queued) and queued <= written, (queued, written)
    assert stream != 0, "the program makes its own stream"
    expected = {"number": 1, "collective": 1, "message": None, "operation": "all_reduce_in_place", "data_type": "float"}
    expected |= {"sent": 4, "received": 4, "peer": None, "source": None, "group": None, "site": None}
    expected |= {"function": "ncclAllReduce"}
    assert record == {**expected, "completed_ns": None, "state": "queued"}, record
assert len(ids) == 1 and all(len(one) == 16 for one in ids), ids
assert len(processes) == SIZE, processes
print("the recordings are right")
