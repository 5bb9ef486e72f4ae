//! Races, without threads: the tests execute operations one after another.

use std::borrow::Cow;
use std::sync::Arc;

use crate::access::Access;
use crate::allocation::{Allocation, Kind, Part};
use crate::handle::{ContextId, StreamId};
use crate::operation::Rows;
use crate::race::{Detector, Race};
use crate::scheduler::{Begun, COMPARISONS, Clock, Executor, Ordering, Point, Scheduler, Step};

const CONTEXT: ContextId = ContextId(1);
const LENGTH: usize = 1 << 20;

/// Streams and an allocation.
struct Bench {
    scheduler: Scheduler<()>,
    detector: Detector,
    allocation: Arc<Allocation>,
    streams: u64,
    calls: u64,
}

impl Bench {
    fn new() -> Self {
        COMPARISONS.set(0);
        let allocation = Allocation::new(Kind::Device, 0, CONTEXT, 0x1000, LENGTH);
        let allocation = Arc::new(Allocation { id: 1, ..allocation });
        let (scheduler, detector) = (Scheduler::new(None), Detector::default());
        Self { scheduler, detector, allocation, streams: 0, calls: 0 }
    }

    fn stream(&mut self) -> StreamId {
        self.streams += 1;
        let stream = StreamId(self.streams);
        let detector = &self.detector;
        self.scheduler.open(stream, CONTEXT, Ordering::NonBlocking, |component| detector.kept.has(component));
        stream
    }

    fn enqueue(&mut self, stream: StreamId, function: &str, accesses: Vec<Access>) {
        self.enqueue_after(stream, &Point::default(), function, accesses);
    }

    fn enqueue_after(
        &mut self,
        stream: StreamId,
        wait: &Point,
        function: &str,
        accesses: Vec<Access>,
    ) -> Step {
        let position = self.scheduler.enqueue(stream, wait, Executor::Library, ());
        self.calls += 1;
        let position = position.expect("the stream is open");
        let (label, step) = (format!("{function}, call {}", self.calls), position.step);
        self.detector.enqueue(position, self.calls, Cow::Owned(label), None, accesses);
        step
    }

    /// Executes the next operation of a stream, and returns its races.
    fn execute(&mut self, stream: StreamId) -> Vec<Race> {
        self.execute_after(stream).0
    }

    /// Executes the next operation of a stream, and returns its races and what came before it.
    fn execute_after(&mut self, stream: StreamId) -> (Vec<Race>, Clock) {
        let Begun { id, clock, .. } = self.scheduler.start(stream).expect("it may start");
        let races = self.detector.begin(id, &clock, self.scheduler.host());
        self.scheduler.complete(id);
        (races, clock)
    }

    fn access(&self, offset: usize, length: usize, writes: bool) -> Access {
        Access::new(&Part::of(&self.allocation, offset), length, writes)
    }

    fn rows(&self, offset: usize, rows: Rows, pitch: usize) -> Access {
        Access::of_rows(&Part::of(&self.allocation, offset), rows, pitch, true)
    }

    fn write(&mut self, stream: StreamId, offset: usize, length: usize) -> Vec<Race> {
        let access = self.access(offset, length, true);
        self.enqueue(stream, "write", vec![access]);
        self.execute(stream)
    }

    fn read(&mut self, stream: StreamId, offset: usize, length: usize) -> Vec<Race> {
        let access = self.access(offset, length, false);
        self.enqueue(stream, "read", vec![access]);
        self.execute(stream)
    }
}

fn require_comparisons(of: usize, operations: usize) {
    let comparisons = COMPARISONS.get();
    assert!(
        comparisons < 40 * operations as u64,
        "{of}: {comparisons} comparisons for {operations} operations"
    );
}

const MANY: usize = 5_000;

#[test]
fn accesses_to_other_bytes_are_not_compared() {
    for piece in [1, 4, 7, 200] {
        let mut bench = Bench::new();
        let streams = [bench.stream(), bench.stream()];
        for number in 0..MANY {
            assert!(bench.write(streams[number % 2], number * piece, piece).is_empty());
        }
        require_comparisons(piece, MANY);
    }
}

#[test]
fn accesses_beside_a_large_one_are_not_compared() {
    let mut bench = Bench::new();
    let (one, two) = (bench.stream(), bench.stream());
    bench.write(one, LENGTH / 2, LENGTH / 2);
    for number in 0..MANY {
        assert!(bench.write(two, number * 4, 4).is_empty());
    }
    require_comparisons(4, MANY);
    assert_eq!(bench.read(one, 0, LENGTH / 2).len(), MANY);
}

#[test]
fn rows_that_are_written_again_are_compared_once() {
    let mut bench = Bench::new();
    let stream = bench.stream();
    for _ in 0..MANY {
        let rows = bench.rows(3, Rows { width: 8, height: 100 }, 16);
        bench.enqueue(stream, "write", vec![rows]);
        assert!(bench.execute(stream).is_empty());
    }
    require_comparisons(16, MANY);
}

#[test]
fn accesses_that_the_host_knows_to_be_over_are_dropped() {
    let mut bench = Bench::new();
    for number in 0..MANY {
        let stream = bench.stream();
        assert!(bench.write(stream, number * 4, 4).is_empty());
        let end = bench.scheduler.point_of_stream(stream).expect("the stream is open");
        bench.scheduler.advance_host(&end.clock());
        bench.scheduler.close(stream);
    }
    let stream = bench.stream();
    COMPARISONS.set(0);
    assert!(bench.write(stream, 0, LENGTH).is_empty());
    assert!(COMPARISONS.get() < 200, "{} comparisons", COMPARISONS.get());
}

#[test]
fn operation_in_place_that_begins_late_is_in_a_race_with_what_the_host_has_waited_for() {
    let mut bench = Bench::new();
    let (one, two) = (bench.stream(), bench.stream());
    // In place: it reads and writes the same bytes.
    let accesses = [false, true].map(|writes| bench.access(0, 8, writes));
    bench.enqueue(one, "collective", accesses.to_vec());
    let access = bench.access(0, 8, false);
    bench.enqueue(two, "copy", vec![access]);
    assert_eq!(bench.execute(two).len(), 0);
    let end = bench.scheduler.point_of_stream(two).expect("the stream is open").clock();
    bench.scheduler.advance_host(&end);
    assert_eq!(bench.execute(one).len(), 1);
}

#[test]
fn races_of_the_same_functions_are_new_once_whatever_their_streams() {
    let mut bench = Bench::new();
    for number in 0..MANY {
        let stream = bench.stream();
        let races = bench.write(stream, 0, 64);
        let new = races.iter().filter(|race| race.is_new).count();
        assert_eq!((races.is_empty(), new), (number == 0, usize::from(number == 1)), "operation {number}");
        bench.scheduler.close(stream);
    }
    require_comparisons(64, MANY);
    let repeated: Vec<_> =
        bench.detector.repeated().map(|(place, number)| (place.to_string(), number)).collect();
    assert_eq!(repeated, [("of write and write in device memory".to_owned(), MANY as u64 - 2)]);
    let stream = bench.stream();
    assert!(bench.read(stream, 0, 1).iter().any(|race| race.is_new), "another function");
}

#[test]
fn race_is_found_with_each_of_the_functions_that_used_the_bytes() {
    let mut bench = Bench::new();
    let streams = [(); 4].map(|()| bench.stream());
    for _ in 0..100 {
        bench.read(streams[0], 10, 20);
        bench.write(streams[1], 25, 10);
        bench.write(streams[2], 100, 10);
    }
    let access = bench.access(0, 28, true);
    bench.enqueue(streams[3], "fill", vec![access]);
    let races = bench.execute(streams[3]);
    let texts = races.iter().filter(|race| race.is_new).map(ToString::to_string).collect::<String>();
    assert!(texts.contains("read, call 298 on stream 0x1, reads bytes 10 to 30"), "{texts}");
    assert!(texts.contains("write, call 299 on stream 0x2, writes bytes 25 to 35"), "{texts}");
    assert!(!texts.contains("bytes 100 to"), "{texts}");
}

#[test]
fn stream_that_is_gone_leaves_nothing_once_its_accesses_are_replaced() {
    let mut bench = Bench::new();
    let steps = (0..MANY).map(|_| {
        let stream = bench.stream();
        bench.write(stream, 0, 64);
        let access = bench.access(0, 64, true);
        bench.enqueue(stream, "write", vec![access]);
        bench.scheduler.close(stream);
        bench.execute_after(stream).1.components()
    });
    let most = steps.max();
    assert!(most < Some(100), "{most:?} components of clocks");
}

#[test]
fn operations_in_races_are_those_that_a_comparison_with_all_finds() {
    let mut found = 0;
    for seed in 0..1000 {
        let mut generator = fastrand::Rng::with_seed(seed);
        let mut bench = Bench::new();
        let mut streams = [(); 4].map(|()| bench.stream());
        let mut all = Vec::new();
        for number in 0..60 {
            let [stream, other] = [(); 2].map(|()| generator.usize(..streams.len()));
            let point = bench.scheduler.point_of_stream(streams[other]).expect("the stream is open");
            match generator.u32(..15) {
                0 => bench.scheduler.advance_host(&point.clock()),
                1 => {
                    bench.scheduler.close(streams[stream]);
                    streams[stream] = bench.stream();
                }
                choice => {
                    let wait = if choice < 8 { point } else { Point::default() };
                    let (start, length, writes) =
                        (generator.usize(..64), generator.usize(1..32), generator.bool());
                    let access = bench.access(start, length, writes);
                    let step = bench.enqueue_after(streams[stream], &wait, "any", vec![access]);
                    let (races, clock) = bench.execute_after(streams[stream]);
                    let is_race = all.iter().any(|&(past, from, to, wrote)| {
                        (wrote || writes) && from < start + length && start < to && !clock.includes(past)
                    });
                    assert_eq!(!races.is_empty(), is_race, "seed {seed}, operation {number}");
                    found += usize::from(is_race);
                    all.push((step, start, start + length, writes));
                }
            }
        }
    }
    assert!(found > 1000, "{found} races");
}
