//! Spans and log records of operations, as a subscriber and a logger get them.
#![cfg(target_os = "linux")] // Elsewhere there is no CPU backend.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::thread;

use libnccl::window::WindowFlags;
use libnccl::{Communicator, ReduceOp, StreamRef};
use libnccl_observe::{Record, RecordExt};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// An operation with its fields, each `NAME=VALUE`.
type Line = (String, BTreeSet<String>);

#[derive(Default)]
struct Fields(BTreeSet<String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(format!("{field}={value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(format!("{field}={value}"));
    }
}

/// The spans, and the number of times that each was entered, exited and closed.
static SPANS: Mutex<Vec<(Line, [usize; 3])>> = Mutex::new(Vec::new());
static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

struct Collector;

impl Collector {
    fn count(id: &Id, call: usize) {
        SPANS.lock().unwrap()[id.into_u64() as usize - 1].1[call] += 1;
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "libnccl"
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        assert_eq!(*attributes.metadata().level(), Level::TRACE);
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut spans = SPANS.lock().unwrap();
        spans.push(((attributes.metadata().name().into(), fields.0), [0; 3]));
        Id::from_u64(spans.len() as u64)
    }
    fn enter(&self, span: &Id) {
        Self::count(span, 0);
    }
    fn exit(&self, span: &Id) {
        Self::count(span, 1);
    }
    fn try_close(&self, span: Id) -> bool {
        Self::count(&span, 2);
        true
    }
    fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.target() == "libnccl" && record.level() == log::Level::Trace {
            let line = record.args().to_string();
            let (operation, fields) = line.split_once(' ').unwrap();
            let fields = fields.split(' ').map(str::to_owned).collect();
            LINES.lock().unwrap().push((operation.into(), fields));
        }
    }
    fn flush(&self) {}
}

/// Returns the expected line, from a record of the recorder.
fn expected(record: &Record, communicator: &str, rank: usize) -> Line {
    let Record { number, sent, received, .. } = record;
    let common = format!(
        "number={number} sent={sent} received={received} communicator={communicator} rank={rank} size=2"
    );
    let mut fields: BTreeSet<_> = common.split(' ').map(str::to_owned).collect();
    fields.extend(record.data_type.map(|data_type| format!("data_type={data_type}")));
    fields.extend(record.peer.map(|peer| format!("peer={peer}")));
    fields.extend(record.source.map(|source| format!("source={source}")));
    (record.operation.into(), fields)
}

/// Calls operations of all kinds.
fn call(comm: &Communicator) {
    let nccl = libnccl_cpu::nccl();
    let (rank, mut all, mut own) = (comm.rank(), [0.0_f32; 6], [1.0_f32; 3]);
    comm.all_gather(&own, &mut all, STREAM).unwrap();
    comm.broadcast_in_place(&mut own, 1, STREAM).unwrap();
    comm.gather_in_place(&mut all[..if rank == 0 { 6 } else { 3 }], 0, STREAM).unwrap();
    comm.send_recv(&[1_u8; 4], &mut [0_u8; 4], 1 - rank, 1 - rank, STREAM).unwrap();
    let (sent, mut received) = ([1_i64; 2], [0_i64; 2]);
    nccl.group(|g| {
        comm.send(&sent, 1 - rank, g.stream(STREAM))?;
        comm.recv(&mut received, 1 - rank, g.stream(STREAM))
    })
    .unwrap();
    let mut scaled = [1.0_f64; 5];
    let halves = comm.pre_mul_sum(0.5_f64).unwrap();
    comm.all_reduce_in_place(&mut scaled, &halves, STREAM).unwrap();
    let mut memory = nccl.alloc::<f32>(4096).unwrap();
    // SAFETY: both ranks register the same size.
    #[allow(unsafe_code)]
    drop(unsafe { comm.register_window(&mut memory, WindowFlags::COLL_SYMMETRIC) }.unwrap());
    comm.barrier(&mut own, STREAM).unwrap();
    comm.all_reduce_in_place(&mut own, ReduceOp::Sum, STREAM).unwrap();
}

#[test]
fn spans_and_log_records_have_the_fields_of_the_recorder() {
    libnccl_observe::log();
    libnccl_observe::tracing();
    tracing::subscriber::set_global_default(Collector).unwrap();
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let comms = libnccl_cpu::nccl().init_all(&[0, 1]).unwrap();
    let recorders: Vec<_> = comms.iter().map(|comm| comm.record(64)).collect();
    thread::scope(|scope| {
        comms.into_iter().for_each(|comm| drop(scope.spawn(move || call(&comm))));
    });
    let json = recorders[0].to_json("test");
    let (_, rest) = json.split_once(r#""id":""#).unwrap();
    let communicator = &rest[..16];
    let mut wanted = Vec::new();
    for (rank, recorder) in recorders.iter().enumerate() {
        let records = recorder.records();
        assert_eq!(records.len(), 10, "{records:?}");
        wanted.extend(records.iter().map(|record| expected(record, communicator, rank)));
    }
    wanted.sort();

    let spans = SPANS.lock().unwrap();
    assert!(spans.iter().all(|(_, calls)| *calls == [1; 3]), "{spans:?}");
    let mut found: Vec<Line> = spans.iter().map(|(line, _)| line.clone()).collect();
    found.sort();
    assert_eq!(found, wanted);
    let mut logged = LINES.lock().unwrap().clone();
    logged.sort();
    assert_eq!(logged, wanted);
}
