//! Spans and log records of operations, as a subscriber and a logger get them.
#![cfg(target_os = "linux")] // Elsewhere there is no CPU backend.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::thread;

use libnccl::window::WindowFlags;
use libnccl::{Communicator, ReduceOp, StreamRef};
use libnccl_observe::{Record, RecordExt};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// The fields by name, as text.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[derive(Debug)]
struct Span {
    name: &'static str,
    fields: Fields,
    /// The number of times that it was entered, exited and closed.
    calls: [usize; 3],
}

static SPANS: Mutex<BTreeMap<u64, Span>> = Mutex::new(BTreeMap::new());
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector(AtomicU64);

impl Collector {
    fn change(id: &Id, change: impl FnOnce(&mut Span)) {
        let mut spans = SPANS.lock().unwrap_or_else(PoisonError::into_inner);
        change(spans.get_mut(&id.into_u64()).expect("a span that was created"));
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "libnccl"
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let (id, metadata) = (self.0.fetch_add(1, Relaxed), attributes.metadata());
        assert_eq!(*metadata.level(), Level::TRACE);
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let span = Span { name: metadata.name(), fields, calls: [0; 3] };
        SPANS.lock().unwrap().insert(id, span);
        Id::from_u64(id)
    }
    fn enter(&self, span: &Id) {
        Self::change(span, |span| span.calls[0] += 1);
    }
    fn exit(&self, span: &Id) {
        Self::change(span, |span| span.calls[1] += 1);
    }
    fn try_close(&self, span: Id) -> bool {
        Self::change(&span, |span| span.calls[2] += 1);
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
            LINES.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// Returns the expected fields, from a record of the recorder.
fn expected(record: &Record, communicator: &str, rank: usize) -> Fields {
    let fields = [
        ("number", Some(record.number.to_string())),
        ("data_type", record.data_type.map(|data_type| data_type.to_string())),
        ("sent", Some(record.sent.to_string())),
        ("received", Some(record.received.to_string())),
        ("peer", record.peer.map(|peer| peer.to_string())),
        ("source", record.source.map(|source| source.to_string())),
        ("communicator", Some(communicator.into())),
        ("rank", Some(rank.to_string())),
        ("size", Some("2".into())),
    ];
    Fields(fields.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect())
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
    tracing::subscriber::set_global_default(Collector(AtomicU64::new(1))).unwrap();
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
        wanted.extend(records.iter().map(|record| (record.operation, expected(record, communicator, rank))));
    }
    wanted.sort();

    let spans = SPANS.lock().unwrap();
    assert!(spans.values().all(|span| span.calls == [1; 3]), "{spans:?}");
    let mut got: Vec<_> = spans.values().map(|span| (span.name, span.fields.clone())).collect();
    got.sort();
    assert_eq!(got, wanted);

    let mut logged: Vec<_> = LINES
        .lock()
        .unwrap()
        .iter()
        .map(|line| {
            let (operation, fields) = line.split_once(' ').unwrap();
            let field = |text: &str| text.split_once('=').map(|(name, value)| (name.into(), value.into()));
            (operation.to_owned(), Fields(fields.split(' ').filter_map(field).collect()))
        })
        .collect();
    logged.sort();
    let wanted: Vec<_> =
        wanted.into_iter().map(|(operation, fields)| (operation.to_owned(), fields)).collect();
    assert_eq!(logged, wanted);
}
