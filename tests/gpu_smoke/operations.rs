//! Every operation, with every element type and reduction, on random data: the GPU's results are compared with the CPU
//! backend's.
//!
//! With one or two ranks there is only one order of reduction, so that even floating-point results are equal bit by
//! bit.

use std::fmt;
use std::sync::Mutex;
use std::thread;

use libnccl::error::ResultCode;
use libnccl::{Communicator, Nccl, ReduceOp, Slice, SliceMut, StreamRef};

use crate::data::{Number, compare, random};
use crate::device::{Buffer, Device};
use crate::rank::Rank;

/// A buffer's length in counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    None,
    One,
    /// One for each rank.
    All,
    /// One for each rank at the root, one elsewhere.
    AllAtRoot,
}

impl Length {
    fn of(self, count: usize, rank: usize, size: usize) -> usize {
        match self {
            Self::None => 0,
            Self::All => count * size,
            Self::AllAtRoot if rank == size - 1 => count * size,
            Self::One | Self::AllAtRoot => count,
        }
    }
}

use Length::{All, AllAtRoot, None as Nothing, One};

/// Each operation: its name, whether it reduces, and the lengths of the send and the receive buffer; in place, there is only the
/// latter.
const OPERATIONS: [(&str, bool, [Length; 2]); 16] = [
    ("all_reduce", true, [One, One]),
    ("all_reduce_in_place", true, [Nothing, One]),
    ("broadcast", false, [One, One]),
    ("broadcast_in_place", false, [Nothing, One]),
    ("reduce", true, [One, One]),
    ("reduce_in_place", true, [Nothing, One]),
    ("all_gather", false, [One, All]),
    ("all_gather_in_place", false, [Nothing, All]),
    ("reduce_scatter", true, [All, One]),
    ("reduce_scatter_in_place", true, [Nothing, All]),
    ("all_to_all", false, [All, All]),
    ("gather", false, [One, All]),
    ("gather_in_place", false, [Nothing, AllAtRoot]),
    ("scatter", false, [All, One]),
    ("scatter_in_place", false, [Nothing, AllAtRoot]),
    ("send_recv", false, [One, One]),
];

macro_rules! types {
    ($($type:ty),*) => {
        [$((stringify!($type), Ranks::check::<$type>)),*]
    };
}

type Check = fn(&mut Ranks, &Case) -> Result<(), String>;

const TYPES: [(&str, Check); 8] = types![i8, u8, i32, u32, i64, u64, f32, f64];

/// Counts for each of NCCL's protocols: small for low latency, odd, and large for bandwidth.
const COUNTS: [usize; 3] = [5, 4099, 262_147];

/// The size in bytes of the longest buffer, which holds the elements of two ranks.
const LONGEST: usize = COUNTS[2] * 2 * size_of::<u64>();

pub(crate) struct Case {
    name: &'static str,
    lengths: [Length; 2],
    type_name: &'static str,
    check: Check,
    op: Option<ReduceOp>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, type_name, op, .. } = self;
        write!(f, "{name} {type_name}")?;
        op.map_or(Ok(()), |op| write!(f, " {op}"))
    }
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, reduces, lengths) in OPERATIONS {
        for (type_name, check) in TYPES {
            let case = |op| Case { name, lengths, type_name, check, op };
            if reduces {
                cases.extend(ReduceOp::ALL.iter().map(|&op| case(Some(op))));
            } else {
                cases.push(case(None));
            }
        }
    }
    cases
}

/// The communicators of the CPU backend with one rank and with two.
static REFERENCES: Mutex<Vec<Vec<Communicator>>> = Mutex::new(Vec::new());

/// Creates and uses the communicators whose results those of the GPU are compared with. They are on host memory for good, as their
/// first operation is before a stand-in for CUDA comes.
pub(crate) fn use_references() {
    let references = [1, 2].map(|size| {
        let devices: Vec<i32> = (0..size).collect();
        let mut all = libnccl_cpu::nccl().init_all(&devices).expect("communicators of the CPU backend");
        thread::scope(|scope| {
            for communicator in &mut all {
                scope.spawn(move || {
                    let sum =
                        communicator.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, StreamRef::DEFAULT);
                    sum.expect("a sum on the CPU backend");
                });
            }
        });
        all
    });
    *REFERENCES.lock().expect("no panic") = references.into();
}

pub(crate) fn run(rank: &Rank) {
    let device = Device::new();
    let communicator = match rank.size() {
        1 => rank.nccl.init_all(&[0]).expect("a communicator").remove(0),
        _ => rank.join("communicator"),
    };
    let references = REFERENCES.lock().expect("no panic").swap_remove(rank.size() - 1);
    let mut ranks = Ranks {
        nccl: rank.nccl.clone(),
        communicator,
        send: device.buffer(LONGEST),
        recv: device.buffer(LONGEST),
        device,
        references,
        cpu: libnccl_cpu::nccl(),
    };
    for case in all() {
        let outcome = (case.check)(&mut ranks, &case);
        rank.report(&case.to_string(), outcome);
    }
    assert_eq!(ranks.communicator.async_error().unwrap(), ResultCode::SUCCESS);
    ranks.communicator.destroy().unwrap();
}

/// This rank's communicator on the GPU, and all ranks' on the CPU.
struct Ranks {
    nccl: Nccl,
    communicator: Communicator,
    device: Device,
    send: Buffer,
    recv: Buffer,
    cpu: Nccl,
    references: Vec<Communicator>,
}

impl Ranks {
    fn check<T: Number>(&mut self, case: &Case) -> Result<(), String> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        for count in COUNTS {
            let data = |rank| case.data::<T>(count, rank, size);
            let expected = self.references::<T>(case, data)?.swap_remove(rank);
            let found = self.on_the_gpu(case, data(rank)).map_err(|error| error.to_string())?;
            let part = case.defined(count, rank, size);
            compare(&found[part.clone()], &expected[part], case.op)
                .map_err(|problem| format!("with a count of {count}: {problem}"))?;
        }
        Ok(())
    }

    fn on_the_gpu<T: Number>(&mut self, case: &Case, data: Data<T>) -> libnccl::Result<Vec<T>> {
        let Self { nccl, communicator, device, send, recv, .. } = self;
        send.write(&data.send);
        recv.write(&data.recv);
        let views = (send.slice::<T>(data.send.len()), recv.slice_mut(data.recv.len()));
        case.start(nccl, communicator, views, device.stream())?;
        Ok(recv.read(data.recv.len()))
    }

    /// Returns what every rank receives on the CPU.
    fn references<T: Number>(
        &mut self,
        case: &Case,
        data: impl Fn(usize) -> Data<T> + Sync,
    ) -> Result<Vec<Vec<T>>, String> {
        let Self { cpu, references, .. } = self;
        thread::scope(|scope| {
            let (cpu, data) = (&*cpu, &data);
            let run = |communicator: &mut Communicator| {
                let Data { send, mut recv } = data(communicator.rank());
                let views = ((&send).into(), (&mut recv).into());
                case.start(cpu, communicator, views, StreamRef::DEFAULT).map(|()| recv)
            };
            let start = |communicator| scope.spawn(move || run(communicator));
            let threads: Vec<_> = references.iter_mut().map(start).collect();
            let results = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            results.collect::<Result<_, _>>().map_err(|error| format!("the CPU backend: {error}"))
        })
    }
}

/// The initial contents of a rank's buffers.
struct Data<T> {
    send: Vec<T>,
    recv: Vec<T>,
}

impl Case {
    fn data<T: Number>(&self, count: usize, rank: usize, size: usize) -> Data<T> {
        let [send, recv] = self.lengths.map(|length| length.of(count, rank, size));
        let random = |count, buffer| random(count, self.op, (2 * rank + buffer) as u64);
        Data { send: random(send, 0), recv: random(recv, 1) }
    }

    fn start<T: Number>(
        &self,
        nccl: &Nccl,
        comm: &Communicator,
        (send, recv): (Slice<'_, T>, SliceMut<'_, T>),
        stream: StreamRef<'_>,
    ) -> libnccl::Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        let root = size - 1;
        let op = self.op.unwrap_or(ReduceOp::Sum);
        match self.name {
            "all_reduce" => comm.all_reduce(send, recv, op, stream),
            "all_reduce_in_place" => comm.all_reduce_in_place(recv, op, stream),
            "broadcast" => comm.broadcast(send, recv, root, stream),
            "broadcast_in_place" => comm.broadcast_in_place(recv, root, stream),
            "reduce" => comm.reduce(send, recv, op, root, stream),
            "reduce_in_place" => comm.reduce_in_place(recv, op, root, stream),
            "all_gather" => comm.all_gather(send, recv, stream),
            "all_gather_in_place" => comm.all_gather_in_place(recv, stream),
            "reduce_scatter" => comm.reduce_scatter(send, recv, op, stream),
            "reduce_scatter_in_place" => comm.reduce_scatter_in_place(recv, op, stream),
            "all_to_all" => comm.all_to_all(send, recv, stream),
            "gather" => comm.gather(send, recv, root, stream),
            "gather_in_place" => comm.gather_in_place(recv, root, stream),
            "scatter" => comm.scatter(send, recv, root, stream),
            "scatter_in_place" => comm.scatter_in_place(recv, root, stream),
            "send_recv" => nccl.group(|group| {
                comm.send(send, (rank + 1) % size, group.stream(stream))?;
                comm.recv(recv, (rank + size - 1) % size, group.stream(stream))
            }),
            name => panic!("{name} is not called here"),
        }
    }

    /// Returns the part of the receive buffer whose contents are defined afterwards.
    fn defined(&self, count: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
        match self.name {
            "reduce_scatter_in_place" => rank * count..(rank + 1) * count,
            _ => 0..self.lengths[1].of(count, rank, size),
        }
    }
}
