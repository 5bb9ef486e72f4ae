//! Every collective, and sends and receives, with every element type and reduction, compared with a reference bit by bit.
//!
//! The number of a call determines all data, so each rank can compute the data of the others. With
//! `LIBNCCL_TEST_EXHAUSTIVE=1`, the CPU backend makes each call with every count (`.ci/run long`).

use std::ffi::{c_int, c_void};
use std::ptr;

use libnccl::sys::{
    ncclCollConfig_t, ncclComm_t, ncclConfig_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
    ncclSimInfo_t,
};

use crate::implementation::Implementation;
use crate::rank::{Buffer, I32, OK, PROGRESS, Rank, SUM, USAGE};
use crate::reference::{Op, TYPES, Type, check_reference};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    let comparison = |name: &str, run| Case { name: name.to_owned(), ranks: 1..=4, run };
    let mut cases = vec![
        comparison("all_reduce", |rank| compare(rank, AllReduce)),
        comparison("broadcast", |rank| compare(rank, Broadcast)),
        comparison("reduce", |rank| compare(rank, Reduce)),
        comparison("all_gather", |rank| compare(rank, AllGather)),
        comparison("reduce_scatter", |rank| compare(rank, ReduceScatter)),
        comparison("all_to_all", |rank| compare(rank, AlltoAll)),
        comparison("gather", |rank| compare(rank, Gather)),
        comparison("scatter", |rank| compare(rank, Scatter)),
        comparison("send_and_receive", |rank| compare(rank, Exchange)),
    ];
    cases.extend(cases! {
        1..=3 => group_of_different_operations, pre_mul_sum_of_device_memory;
        1..=2 => empty_collectives_use_no_buffer, simulated_group_starts_nothing;
        2..=2 => every_pair_of_small_floats, captured_graph_runs_at_each_launch;
    });
    cases
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    /// Every rank sends to the rank that is the root after it, perhaps itself.
    Exchange,
}

use Operation::{
    AllGather, AllReduce, AlltoAll, Broadcast, Exchange, Gather, Reduce, ReduceScatter, Scatter,
};

impl Operation {
    fn reduces(self) -> bool {
        matches!(self, AllReduce | Reduce | ReduceScatter)
    }

    /// Returns whether the send buffer has a block for each rank.
    fn sends_blocks(self) -> bool {
        matches!(self, ReduceScatter | Scatter | AlltoAll)
    }

    fn receives_blocks(self) -> bool {
        matches!(self, AllGather | Gather | AlltoAll)
    }

    fn sends(self, is_root: bool) -> bool {
        !matches!(self, Broadcast | Scatter) || is_root
    }

    fn receives(self, is_root: bool) -> bool {
        !matches!(self, Gather | Reduce) || is_root
    }
}

/// Elements after which a rank's data repeats: no part of a buffer begins at a multiple of it.
const TILE: usize = 4099;

/// Bytes around a buffer, which must not change.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// The counts of elements: for each protocol of a GPU, which uses all, and for each transport of the CPU backend, which uses one.
const COUNTS_ON_A_GPU: [usize; 3] = [5, 4099, 262_147];
const COUNTS: [usize; 6] = [1, 2047, 7, 4099, 751, 37_500];

#[derive(Debug, Clone, Copy)]
struct Call {
    operation: Operation,
    data: Type,
    op: Option<Op>,
    count: usize,
    /// Determines the root, the offsets and the memory of the buffers.
    number: usize,
    is_in_place: bool,
}

/// A rank with its communicator, the data of all ranks, and memory that it reuses.
struct Comparison<'a> {
    rank: &'a Rank,
    comm: ncclComm_t,
    is_gpu: bool,
    /// Memory of the program and of NCCL, each to send from and to receive in.
    memory: [[Buffer<'a>; 2]; 2],
    tiles: Vec<Vec<u8>>,
}

/// Compares an operation with every type and reduction.
fn compare(rank: &Rank, operation: Operation) {
    let is_gpu = rank.implementation == Implementation::Gpu;
    let is_exhaustive = std::env::var_os("LIBNCCL_TEST_EXHAUSTIVE").is_some();
    let is_sampled = rank.implementation == Implementation::SharedObject && !is_exhaustive;
    let largest = if is_gpu { COUNTS_ON_A_GPU[2] } else { COUNTS[5] };
    let room = vec![0_u8; 8 * largest * rank.size + 2 * GUARD + 64];
    let memory =
        [[rank.upload(&room), rank.upload(&room)], [rank.upload_to_nccl(&room), rank.upload_to_nccl(&room)]];
    let comm = rank.join("communicator");
    let mut comparison = Comparison { rank, comm, is_gpu, memory, tiles: vec![] };
    let all = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg, Op::PreMulSum];
    let ops = if operation.reduces() { all.map(Some).to_vec() } else { vec![None] };
    let (mut number, mut problems) = (0, vec![]);
    for data in TYPES {
        for op in ops.iter().copied() {
            comparison.use_data(data, op);
            for is_in_place in [false, true] {
                let sampled = [COUNTS[(number + number / COUNTS.len()) % COUNTS.len()]];
                let counts: &[usize] = match is_gpu {
                    true => &COUNTS_ON_A_GPU,
                    false if is_exhaustive => &COUNTS,
                    false => &sampled,
                };
                for count in counts.iter().copied() {
                    number += 1;
                    // Processes take turns on the cores of a small machine.
                    if is_sampled && (number / 2).is_multiple_of(2) {
                        continue;
                    }
                    let call = Call { operation, data, op, count, number, is_in_place };
                    problems.extend(comparison.run(call).map(|problem| format!("{call:?}: {problem}")));
                }
            }
        }
    }
    let first = problems.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(problems.is_empty(), "rank {}: {} of {number}:\n{first}", rank.number, problems.len());
    rank.destroy(comm);
}

impl<'a> Comparison<'a> {
    fn use_data(&mut self, data: Type, op: Option<Op>) {
        let tile = |rank: usize| {
            let seed = u64::from(data.raw.0) << 8 | rank as u64;
            if self.is_gpu { data.elements_for_gpu(seed, TILE, op) } else { data.elements(seed, TILE) }
        };
        self.tiles = (0..self.rank.size).map(tile).collect();
    }

    /// Returns each rank's scalar of a custom reduction.
    fn scalars(&self, data: Type) -> Vec<u64> {
        const SCALARS: [f64; 4] = [0.3, 2.0, -1.7, 3.1];
        let scalar = |rank: usize| if self.is_gpu { 2.0 } else { SCALARS[rank] };
        (0..self.rank.size).map(|rank| data.nearest(scalar(rank))).collect()
    }

    /// Makes a call, and returns the mismatches in the buffers.
    fn run(&self, call: Call) -> Option<String> {
        let Call { operation, data, count, number, .. } = call;
        let (size, root) = (self.rank.size, number % self.rank.size);
        let is_root = self.rank.number == root;
        let (sends, receives) = (operation.sends(is_root), operation.receives(is_root));
        let is_in_place = call.is_in_place && sends && receives && !matches!(operation, AlltoAll | Exchange);
        let bytes = |has_blocks| data.size * if has_blocks { size * count } else { count };
        let (input, output) = (bytes(operation.sends_blocks()), bytes(operation.receives_blocks()));
        let own = self.rank.number * count * data.size;
        // Each rank has its own mixture of memory. Memory that is only aligned to its element size must work, too.
        let mixture = number / 2 + self.rank.number;
        let offset = GUARD + number % 8 * data.size;
        let [from, to] = [&self.memory[mixture % 2][0], &self.memory[mixture / 2 % 2][1]];
        let from = if is_in_place { to } else { from };
        // In place, the smaller buffer is the rank's own block of the larger.
        let send_at = offset + if is_in_place && operation.receives_blocks() { own } else { 0 };
        let receive_at = offset + if is_in_place && operation.sends_blocks() { own } else { 0 };
        to.write(&vec![UNTOUCHED; offset + input.max(output) + GUARD]);
        let sent = self.tiled(data, self.rank.number, number, 0, input / data.size);
        from.write_at(send_at, &sent);

        let address =
            |is_used, buffer: &Buffer<'_>, at| if is_used { buffer.at(at) } else { ptr::null_mut() };
        let addresses = [address(sends, from, send_at), address(receives, to, receive_at)];
        match self.start(call, addresses, root as c_int) {
            OK | PROGRESS => self.rank.finish(self.comm),
            // A GPU, or its NCCL, may be too old for them.
            _ if self.is_gpu && matches!(data.raw.0, 10 | 11) => return None,
            code => return Some(format!("{code:?}: {}", self.rank.last_error())),
        }

        let after = to.read_first(offset + input.max(output) + GUARD);
        let received = &after[receive_at..][..output];
        let is_untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == UNTOUCHED);
        // In place, the rest of a large send buffer may be overwritten.
        let end = if is_in_place { offset + input.max(output) } else { offset + output };
        if !is_untouched(&after[..offset]) || !is_untouched(&after[end..]) {
            return Some("written around the receive buffer".into());
        }
        if !is_in_place && from.read_first::<u8>(send_at + input)[send_at..] != sent {
            return Some("written to the send buffer".into());
        }
        if receives {
            return self.difference(call, root, received);
        }
        (!is_untouched(received)).then(|| "received data as a rank that receives nothing".into())
    }

    /// Starts a call, some with a config: another form of the same operation, which old versions of NCCL lack.
    fn start(&self, call: Call, [from, to]: [*mut c_void; 2], root: c_int) -> ncclResult_t {
        let (rank, comm, stream) = (self.rank, self.comm, self.rank.stream());
        let (count, raw) = (call.count, call.data.raw);
        let op = call.op.map_or(SUM, |op| self.create(op, call.data));
        let has_config = call.number.is_multiple_of(3) && rank.functions().ncclAllReduceConfig.is_some();
        let options = ncclCollConfig_t { maxCTAs: 1, userProfilerTag: 7, ..ncclCollConfig_t::initializer() };
        macro_rules! form {
            ($plain:ident | $configured:ident($($argument:expr),*)) => {
                match has_config {
                    true => call!(rank, $configured($($argument,)* comm, stream, &raw const options)),
                    false => call!(rank, $plain($($argument,)* comm, stream)),
                }
            };
        }
        let code = match call.operation {
            Broadcast if !has_config && call.is_in_place && count.is_multiple_of(2) => {
                call!(rank, ncclBcast(to, count, raw, root, comm, stream))
            }
            AllReduce => form!(ncclAllReduce | ncclAllReduceConfig(from, to, count, raw, op)),
            Reduce => form!(ncclReduce | ncclReduceConfig(from, to, count, raw, op, root)),
            ReduceScatter => form!(ncclReduceScatter | ncclReduceScatterConfig(from, to, count, raw, op)),
            Broadcast => form!(ncclBroadcast | ncclBroadcastConfig(from, to, count, raw, root)),
            AllGather => form!(ncclAllGather | ncclAllGatherConfig(from, to, count, raw)),
            Gather => form!(ncclGather | ncclGatherConfig(from, to, count, raw, root)),
            Scatter => form!(ncclScatter | ncclScatterConfig(from, to, count, raw, root)),
            AlltoAll => form!(ncclAlltoAll | ncclAlltoAllConfig(from, to, count, raw)),
            Exchange => {
                let (size, me) = (rank.size as c_int, rank.number as c_int);
                rank.group(|| {
                    check!(rank, ncclSend(from, count, raw, (me + root) % size, comm, stream));
                    check!(rank, ncclRecv(to, count, raw, (me + size - root) % size, comm, stream));
                })
            }
        };
        if call.op == Some(Op::PreMulSum) {
            check!(rank, ncclRedOpDestroy(op, comm));
        }
        code
    }

    /// Returns the operator to pass.
    fn create(&self, op: Op, data: Type) -> ncclRedOp_t {
        match op {
            Op::Sum => ncclRedOp_t::ncclSum,
            Op::Prod => ncclRedOp_t::ncclProd,
            Op::Max => ncclRedOp_t::ncclMax,
            Op::Min => ncclRedOp_t::ncclMin,
            Op::Avg => ncclRedOp_t::ncclAvg,
            Op::PreMulSum => {
                let mut scalar = self.scalars(data)[self.rank.number].to_le_bytes();
                let (mut op, place) = (SUM, scalar.as_mut_ptr().cast());
                let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
                check!(self.rank, ncclRedOpCreatePreMulSum(&mut op, place, data.raw, residence, self.comm));
                op
            }
        }
    }

    /// Returns the bytes that a rank sends in a call, from an element on.
    fn tiled(&self, data: Type, rank: usize, number: usize, start: usize, count: usize) -> Vec<u8> {
        let skipped = (number * 997 + start) % TILE * data.size;
        let (tile, bytes) = (&self.tiles[rank], count * data.size);
        let mut tiled = tile[skipped..].to_vec();
        while tiled.len() < bytes {
            tiled.extend_from_slice(tile);
        }
        tiled.truncate(bytes);
        tiled
    }

    /// Returns the first difference between the bytes that this rank has received and the expected ones.
    fn difference(&self, call: Call, root: usize, received: &[u8]) -> Option<String> {
        let Call { operation, data, op, count, number, .. } = call;
        let (size, me) = (self.rank.size, self.rank.number);
        let from = |rank, start| self.tiled(data, rank, number, start, count);
        let each = |from: &dyn Fn(usize) -> Vec<u8>| (0..size).map(from).collect::<Vec<_>>().concat();
        let expected = match operation {
            AllReduce | Reduce | ReduceScatter => return self.reduced_difference(call, root, received, op?),
            Broadcast => from(root, 0),
            AllGather | Gather => each(&|peer| from(peer, 0)),
            Scatter => from(root, me * count),
            AlltoAll => each(&|peer| from(peer, me * count)),
            Exchange => from((me + size - root) % size, 0),
        };
        let first = received.iter().zip(&expected).position(|(got, expected)| got != expected)?;
        Some(format!("byte {first} is {:#x}, not {:#x}", received[first], expected[first]))
    }

    fn reduced_difference(&self, call: Call, root: usize, received: &[u8], op: Op) -> Option<String> {
        let Call { operation, data, count, number, .. } = call;
        let (size, scalars) = (self.rank.size, self.scalars(data));
        let first = if operation == ReduceScatter { self.rank.number * count } else { 0 };
        // The rank that is last in the order of the CPU backend. Two ranks have one order.
        let chunk = (count.div_ceil(size) * data.size).next_multiple_of(512);
        let mut known: Vec<Option<u64>> = vec![None; size * TILE];
        (0..count).find_map(|index| {
            let of = (number * 997 + first + index) % TILE;
            let last = match operation {
                AllReduce => index * data.size / chunk,
                Reduce => root,
                _ => self.rank.number,
            };
            let expected = *known[last * TILE + of]
                .get_or_insert_with(|| data.reduce(op, &self.tiles, of, last, &scalars));
            let found = data.load(received, index);
            (!data.is_same(Some(op), found, expected, self.is_gpu)).then(|| {
                let sent: Vec<u64> = self.tiles.iter().map(|tile| data.load(tile, of)).collect();
                format!("element {index} is {found:#x}, not {expected:#x}; sent {sent:#x?}")
            })
        })
    }
}

/// Reduces each pair of elements, and compares the results with the reference.
fn every_pair_of_small_floats(rank: &Rank) {
    if rank.implementation != Implementation::InProcess {
        rank.skip("the arithmetic is checked once");
    }
    check_reference();
    let comm = rank.join("communicator");
    let check = |data: Type, ops: &[(Op, ncclRedOp_t)], pairs: &[(u64, u64)]| {
        let bytes = |bits: u64| bits.to_le_bytes().into_iter().take(data.size);
        let sends: [Vec<u8>; 2] = [
            pairs.iter().flat_map(|(one, _)| bytes(*one)).collect(),
            pairs.iter().flat_map(|(_, other)| bytes(*other)).collect(),
        ];
        let (from, to) = (rank.upload(&sends[rank.number]), rank.upload(&sends[0]));
        let chunk = (pairs.len().div_ceil(2) * data.size).next_multiple_of(512);
        for (op, raw) in ops.iter().copied() {
            check!(
                rank,
                ncclAllReduce(from.at(0), to.at(0), pairs.len(), data.raw, raw, comm, rank.stream())
            );
            let received = to.read::<u8>();
            for (index, (one, other)) in pairs.iter().enumerate() {
                let expected = data.reduce(op, &sends, index, index * data.size / chunk, &[]);
                let found = data.load(&received, index);
                assert!(
                    data.is_same(Some(op), found, expected, false),
                    "{op:?} of {one:#x} and {other:#x}: {found:#x}, not {expected:#x}"
                );
            }
        }
    };
    let [sum, prod] = [(Op::Sum, ncclRedOp_t::ncclSum), (Op::Prod, ncclRedOp_t::ncclProd)];
    let extremes = [(Op::Max, ncclRedOp_t::ncclMax), (Op::Min, ncclRedOp_t::ncclMin)];
    let all: Vec<(u64, u64)> = (0..1 << 16).map(|pair| (pair >> 8, pair & 0xff)).collect();
    let [.., half, _, _, bfloat16, e4m3, e5m2] = TYPES;
    check(e4m3, &[sum, prod, extremes[0], extremes[1]], &all);
    check(e5m2, &[sum, prod, extremes[0], extremes[1]], &all);
    // Each number, and half a unit in its last place, a little less, and a little more.
    let with_half_units = |mantissa: u64| {
        let near = move |bits: u64| {
            let exponent = bits >> mantissa & ((1 << (15 - mantissa)) - 1);
            let half_unit = exponent.saturating_sub(mantissa + 1) << mantissa;
            [half_unit.saturating_sub(1), half_unit, half_unit + 1]
                .map(|other| (bits, other | bits & 1 << 15))
        };
        (0..1 << 16).flat_map(near).collect::<Vec<_>>()
    };
    check(half, &[sum], &with_half_units(10));
    check(bfloat16, &[sum], &with_half_units(7));
    // Subnormal products, and all mantissas around half the smallest number.
    let small =
        (1..0x480).flat_map(|left| (0x3c00..0x4080).step_by(61).map(move |right| (left, right | 0x8000)));
    let mantissas = (0..1 << 14).flat_map(|pair| {
        [0x1d80, 0x1e00, 0x1e80, 0x1f00].map(|exponent| (0x1e00 | pair >> 7, exponent | pair & 0x7f))
    });
    check(bfloat16, &[prod], &small.chain(mantissas).collect::<Vec<_>>());
    rank.destroy(comm);
}

/// NCCL destroys no communicator while a graph contains its work.
fn captured_graph_runs_at_each_launch(rank: &Rank) {
    for (turn, is_aborted) in [false, true].into_iter().enumerate() {
        let comm = rank.join(&format!("communicator {turn}"));
        rank.assert_works(comm);
        let buffers = [rank.upload(&[3_i32; 1000]), rank.upload_to_nccl(&[3_i32; 1000])];
        let graph = rank.capture(|| buffers.iter().for_each(|buffer| rank.start_sum(comm, buffer)));
        for launches in 1..=2 {
            graph.launch().expect("a graph can be launched");
            for buffer in &buffers {
                assert_eq!(buffer.read::<i32>(), [3 * 2_i32.pow(launches); 1000]);
            }
        }
        rank.barrier(&format!("launched {turn}"));
        drop(graph);
        let code =
            if is_aborted { call!(rank, ncclCommAbort(comm)) } else { call!(rank, ncclCommDestroy(comm)) };
        assert_eq!(code, OK);
    }
}

fn group_of_different_operations(rank: &Rank) {
    let (comm, stream, size) = (rank.join("communicator"), rank.stream(), rank.size);
    let (next, before) = ((rank.number + 1) % size, (rank.number + size - 1) % size);
    let (summed, copied) = (rank.upload(&[1_i32; 1000]), rank.upload(&[rank.number as i32; 70_000]));
    let (sent, received) = (rank.upload(&[rank.number as i32; 9]), rank.upload(&[-1_i32; 9]));
    let code = rank.group(|| {
        rank.start_sum(comm, &summed);
        check!(rank, ncclBroadcast(copied.at(0), copied.at(0), 70_000, I32, size as c_int - 1, comm, stream));
        check!(rank, ncclSend(sent.at(0), 9, I32, next as c_int, comm, stream));
        check!(rank, ncclRecv(received.at(0), 9, I32, before as c_int, comm, stream));
        // The end of an inner group starts nothing.
        assert_eq!(rank.group(|| rank.start_sum(comm, &summed)), OK);
    });
    assert_eq!(code, OK, "{}", rank.last_error());
    assert_eq!(summed.read::<i32>(), [(size * size) as i32; 1000]);
    assert_eq!(copied.read::<i32>(), [size as i32 - 1; 70_000]);
    assert_eq!(received.read::<i32>(), [before as i32; 9]);
    rank.destroy(comm);
}

/// The scalar is read when the operation runs: an operation before it on the stream writes it.
fn pre_mul_sum_of_device_memory(rank: &Rank) {
    let (comm, float, stream) = (rank.join("communicator"), TYPES[7], rank.stream());
    let factors: Vec<f32> = (0..rank.size).map(|rank| rank as f32 + 2.0).collect();
    let (sent, scalar, buffer) = (rank.upload(&factors), rank.upload(&[0_f32]), rank.upload(&[3_f32; 1000]));
    let mut op = SUM;
    let residence = ncclScalarResidence_t::ncclScalarDevice;
    check!(rank, ncclRedOpCreatePreMulSum(&mut op, scalar.at(0), float.raw, residence, comm));
    check!(rank, ncclReduceScatter(sent.at(0), scalar.at(0), 1, float.raw, SUM, comm, stream));
    check!(rank, ncclAllReduce(buffer.at(0), buffer.at(0), 1000, float.raw, op, comm, stream));
    let scalars = factors.iter().sum::<f32>() * rank.size as f32;
    assert_eq!(buffer.read::<f32>(), [3.0 * scalars; 1000]);
    check!(rank, ncclRedOpDestroy(op, comm));
    rank.destroy(comm);
}

fn empty_collectives_use_no_buffer(rank: &Rank) {
    let (comm, none) = (rank.join("communicator"), ptr::null_mut());
    for _ in 0..3 {
        check!(rank, ncclAllReduce(none, none, 0, I32, SUM, comm, rank.stream()));
        check!(rank, ncclAllGather(none, none, 0, I32, comm, rank.stream()));
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn simulated_group_starts_nothing(rank: &Rank) {
    // NCCL starts the operations of a single rank immediately.
    if rank.size == 1 {
        rank.skip("it needs two ranks");
    }
    let (comm, buffer) = (rank.join("communicator"), rank.upload(&[5_i32; 1000]));
    rank.assert_works(comm);
    let mut info = ncclSimInfo_t::initializer();
    check!(rank, ncclGroupStart());
    rank.start_sum(comm, &buffer);
    check!(rank, ncclGroupSimulateEnd(&mut info));
    // NCCL has no estimate for some operations.
    assert!(info.estimatedTime > 0.0 || !rank.implementation.is_cpu_backend(), "{}", info.estimatedTime);
    rank.barrier("simulated");
    assert_eq!(buffer.read::<i32>(), [5; 1000]);
    assert_eq!(call!(rank, ncclGroupEnd()), USAGE, "the group has ended");
    // A communicator cannot be created in a simulation.
    if rank.implementation.is_cpu_backend() {
        let (mut other, id) = (ptr::null_mut(), rank.new_id());
        check!(rank, ncclGroupStart());
        check!(rank, ncclCommInitRankConfig(&mut other, 1, id, 0, &mut ncclConfig_t::initializer()));
        assert_eq!(call!(rank, ncclGroupSimulateEnd(&mut info)), USAGE);
        assert!(other.is_null());
    }
    rank.start_sum(comm, &buffer);
    assert_eq!(buffer.read::<i32>(), [5 * rank.size as i32; 1000]);
    rank.destroy(comm);
}
