//! `nccl bench pairs`: bandwidth and latency between every two ranks, as matrices and as heat maps (slower pairs are darker).

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use itertools::Itertools;
use libnccl::{Config, DataType, ReduceOp};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

use super::arguments::refuse;
use super::compare::ratio;
use super::data::{Arithmetic, Data, Reduction};
use super::measure::memory::{Buffer, Memory};
use super::measure::ranks::{Rank, Ranks, available_bytes};
use super::output::{conclude, exit_code, lock, progress_bar};
use super::plot::{Area, FONT, label, picture, style};
use super::start::{Job, RankArguments, Start};
use super::statistics::digits;
use crate::output::in_line;
use crate::value_parser::{size, whole};
use crate::{file, output};

#[derive(Debug, Clone, Args)]
#[command(after_help = include_str!("../help/pairs.txt").trim_end())]
pub(crate) struct PairsArguments {
    #[command(flatten)]
    pub(crate) ranks: RankArguments,
    /// Bytes of each send that bandwidth is measured with [default: 4M on the CPU, 64M on GPUs]
    #[arg(short, long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Sends in each direction of a pair
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) iters: u32,
    /// Fail if a bandwidth is below this many GB/s
    #[arg(long, value_name = "GB/S", value_parser = ratio)]
    pub(crate) min_bandwidth: Option<f64>,
    /// Fail if a latency is above this many microseconds
    #[arg(long, value_name = "US", value_parser = ratio)]
    pub(crate) max_latency: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw both matrices as heat maps
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

const MAX_NAMED: usize = 8;

/// The number of measurements of a link. The best one counts, because other load only makes measurements worse.
const BATCHES: usize = 10;

/// The number of elements in each send of a latency measurement: 8 bytes.
const SHORT: usize = 2;

/// The pairs measured so far, which rank 0 stores until it prints them.
type Measured = Arc<Mutex<Option<Pairs>>>;

/// Measures one pair at a time, so that pairs do not disturb each other.
pub(crate) fn run(arguments: &PairsArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let start = Start::new(&arguments.ranks, None)?;
    if arguments.ranks.ranks == Some(1) {
        refuse::<PairsArguments>("nccl bench pairs", "--ranks 1: expected a whole number from 2 to 1024");
    }
    let (processes, threads) = start.processes_and_threads();
    ensure!(
        processes * threads > 1,
        "there is one GPU, and --ranks is not given: expected at least two ranks"
    );
    let job = start.join(threads, 1)?;
    if let (0, Some(reason)) = (job.rank(0), &job.fallback) {
        output::write_to_stderr(&format!("{reason}\n"));
    }
    let measured = Measured::default();
    let (interrupted, also) = (measured.clone(), arguments.clone());
    // The signal ends the process even if the output cannot be written.
    let complete = move || drop(take(&interrupted).map(|pairs| write(&pairs, &also)));
    let own = arguments.clone();
    let work = move |job: &Job, thread| {
        if job.rank(thread) > 0 {
            return measure(job, thread, &own, &measured).map(|()| true);
        }
        own.svg.as_deref().map_or(Ok(()), file::check)?;
        measure(job, thread, &own, &measured)?;
        // The signal thread may have taken them, and ends this process.
        take(&measured).map_or(Ok(true), |pairs| write(&pairs, &own))
    };
    job.run(complete, work).map(exit_code)
}

fn take(measured: &Measured) -> Option<Pairs> {
    let mut pairs = lock(measured).take()?;
    pairs.judge();
    Some(pairs)
}

/// Prints the pairs and their problems, then draws the pairs. Returns whether there are no problems.
fn write(pairs: &Pairs, arguments: &PairsArguments) -> Result<bool> {
    let printed = output::print(pairs, arguments.json);
    let mut problems = pairs.problems(arguments.min_bandwidth, arguments.max_latency);
    let is_good = problems.is_empty();
    let more = problems.len().saturating_sub(MAX_NAMED);
    problems.truncate(MAX_NAMED);
    problems.extend((more > 0).then(|| format!("and {more} more")));
    if !is_good {
        output::write_to_stderr(&format!("error: {}\n", problems.join("; ")));
    }
    let draw = |file| file::write(file, draw(pairs)?.as_bytes());
    conclude(is_good, [printed, arguments.svg.as_deref().map_or(Ok(()), draw)])
}

struct Endpoint {
    send: Buffer,
    recv: Buffer,
    data: Data,
    /// The number of elements in a long send. A batch has `repeats` sends.
    elements: usize,
    repeats: usize,
}

/// Measures all pairs, one after the other. Rank 0 stores them in `measured`.
fn measure(job: &Job, thread: usize, arguments: &PairsArguments, measured: &Measured) -> Result<()> {
    let bytes = arguments.size.unwrap_or(if job.gpus == 0 { 4 << 20 } else { 64 << 20 });
    let elements = (usize::try_from(bytes)? / size_of::<f32>()).max(SHORT);
    let repeats = (arguments.iters as usize).div_ceil(BATCHES);
    let memory = Memory::of(job.local_rank(thread), job.gpus, false)?;
    let mut ranks = Ranks::new(job, thread, vec![memory], &Config::new())?;
    let available = available_bytes(&ranks.describe()?);
    let own = job.rank(thread);
    if bytes > available / 2 {
        let room = format!("each rank has {available} bytes of memory for two buffers");
        ensure!(own > 0, "--size {bytes} does not fit: {room}");
        return Ok(());
    }
    let memory = &ranks.members[0].memory;
    let buffer = || memory.buffer(&job.nccl, DataType::Float32, elements);
    let arithmetic = Arithmetic::new(DataType::Float32)?;
    let data = Data { arithmetic, op: Reduction::Op(ReduceOp::Sum), ranks: job.size, seed: 0 };
    let mut endpoint = Endpoint { send: buffer()?, recv: buffer()?, data, elements, repeats };
    endpoint.send.fill(0..elements, &data.sent(own))?;
    let mut progress = None;
    if own == 0 {
        let bytes = (elements * size_of::<f32>()) as u64;
        let device = memory.device()?.unwrap_or_else(|| "host memory".into());
        let pairs = Pairs {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            library: format!("{} ({})", job.nccl.version(), job.nccl.backend()),
            device,
            launch: job.launch.clone(),
            bytes,
            iters: repeats * BATCHES,
            links: vec![vec![None; job.size]; job.size],
            ranks: vec![],
        };
        progress = Some(progress_bar(Some(pairs.number() as u64), "pairs"));
        *lock(measured) = Some(pairs);
    }
    ranks.barrier()?;
    for (low, high) in (0..job.size).tuple_combinations() {
        let rank = &ranks.members[0];
        let side = match own {
            own if own == low => endpoint.exchange(rank, high)?,
            own if own == high => endpoint.exchange(rank, low)?,
            _ => Link::default(),
        };
        // The others wait for the pair, too.
        let sides = ranks.gather(&[side])?;
        let Some(progress) = &progress else { continue };
        let link = |from: usize, to: usize| Link {
            latency_us: sides[low].latency_us,
            median_latency_us: sides[low].median_latency_us,
            wrong: sides[to].wrong,
            first_wrong: sides[to].first_wrong,
            ..sides[from].clone()
        };
        // The signal thread may have taken them.
        if let Some(pairs) = lock(measured).as_mut() {
            pairs.links[low][high] = Some(link(low, high));
            pairs.links[high][low] = Some(link(high, low));
        }
        progress.set_message(format!("ranks {low} and {high}"));
        progress.inc(1);
    }
    ranks.destroy()
}

impl Endpoint {
    /// Measures this rank's side of a pair: the latency, the bandwidth of its sends, and the mismatches in received data.
    fn exchange(&mut self, rank: &Rank, peer: usize) -> Result<Link> {
        let is_first = rank.communicator.rank() < peer;
        self.recv.fill(0..self.elements, &self.data.untouched())?;
        // NCCL connects at the first send.
        self.round_trip(rank, peer, is_first)?;
        let mut side = Link::default();
        for sends in [is_first, !is_first] {
            self.stream(rank, peer, 1, sends)?;
            if !sends {
                wait(rank)?;
                let comparison = self.recv.compare(0..self.elements, &self.data.sent(peer))?;
                side.wrong = comparison.wrong as u64;
                side.first_wrong = comparison.first.map(|first| first.offset as u64);
            }
        }
        let mut latencies = vec![];
        for _ in 0..BATCHES {
            let begin = Instant::now();
            for _ in 0..self.repeats {
                self.round_trip(rank, peer, is_first)?;
            }
            wait(rank)?;
            latencies.push(begin.elapsed().as_secs_f64() * 1e6 / self.repeats as f64 / 2.0);
        }
        let mut bandwidths = vec![];
        for sends in [is_first, !is_first] {
            for _ in 0..BATCHES {
                let begin = Instant::now();
                self.stream(rank, peer, self.repeats, sends)?;
                wait(rank)?;
                if sends {
                    let bytes = (self.elements * size_of::<f32>() * self.repeats) as f64;
                    bandwidths.push(bytes / 1e9 / begin.elapsed().as_secs_f64());
                }
            }
        }
        latencies.sort_by(f64::total_cmp);
        bandwidths.sort_by(|one, two| two.total_cmp(one));
        (side.latency_us, side.median_latency_us) = (latencies[0], latencies[BATCHES / 2]);
        (side.bandwidth, side.median_bandwidth) = (bandwidths[0], bandwidths[BATCHES / 2]);
        Ok(side)
    }

    fn round_trip(&mut self, rank: &Rank, peer: usize, is_first: bool) -> Result<()> {
        for sends in [is_first, !is_first] {
            self.start(rank, peer, SHORT, sends)?;
        }
        Ok(())
    }

    /// Sends a large buffer `repeats` times, then receives 8 bytes as acknowledgment; if `sends` is false, the opposite.
    fn stream(&mut self, rank: &Rank, peer: usize, repeats: usize, sends: bool) -> Result<()> {
        for _ in 0..repeats {
            self.start(rank, peer, self.elements, sends)?;
        }
        self.start(rank, peer, SHORT, !sends)
    }

    fn start(&mut self, rank: &Rank, peer: usize, count: usize, sends: bool) -> Result<()> {
        let (communicator, stream) = (&rank.communicator, rank.memory.stream());
        if sends {
            communicator.send(self.send.part(0..count)?, peer, stream)?;
        } else {
            communicator.recv(self.recv.part_mut(0..count)?, peer, stream)?;
        }
        Ok(())
    }
}

fn wait(rank: &Rank) -> Result<()> {
    rank.memory.synchronize(&rank.communicator)
}

const SCHEMA: u32 = 1;

/// A rank counts as slow if the median of its links is worse than the median of all links by this factor.
const SLOW: f64 = 4.0;

#[derive(Debug, Default, Serialize)]
struct Pairs {
    schema: u32,
    program: String,
    /// The version of NCCL and where it comes from.
    library: String,
    device: String,
    launch: String,
    bytes: u64,
    iters: usize,
    /// `links[a][b]` is the link from rank a to rank b; `None` if a equals b, or if it has not been measured.
    links: Vec<Vec<Option<Link>>>,
    ranks: Vec<RankSummary>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Link {
    /// Half the round-trip time of 8 bytes, the minimum of ten measurements.
    latency_us: f64,
    median_latency_us: f64,
    /// The bandwidth in GB/s, the maximum of ten measurements.
    bandwidth: f64,
    median_bandwidth: f64,
    /// The number of mismatches in one send.
    wrong: u64,
    first_wrong: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RankSummary {
    rank: usize,
    /// The median of its latencies; `None` if none of its links has been measured.
    latency_us: Option<f64>,
    /// The median of its bandwidths in both directions.
    bandwidth: Option<f64>,
    /// The number of mismatches in the elements that it sent.
    wrong: u64,
    /// Set if its median latency or bandwidth is worse than the median of all links by [`SLOW`].
    is_slow: bool,
}

impl Pairs {
    fn number(&self) -> usize {
        self.links.len() * (self.links.len() - 1) / 2
    }

    fn judge(&mut self) {
        let all = medians(self.each());
        let rank = |rank: usize| {
            let own = medians(self.each().filter(|(from, to, _)| [*from, *to].contains(&rank)));
            let is_slow = all.zip(own).is_some_and(|(all, own)| own.0 > SLOW * all.0 || all.1 > SLOW * own.1);
            let (latency_us, bandwidth) = own.unzip();
            let wrong = self.links[rank].iter().flatten().map(|link| link.wrong).sum();
            RankSummary { rank, latency_us, bandwidth, wrong, is_slow: is_slow && self.links.len() > 2 }
        };
        self.ranks = (0..self.links.len()).map(rank).collect();
    }

    fn problems(&self, min_bandwidth: Option<f64>, max_latency: Option<f64>) -> Vec<String> {
        let mut problems = vec![];
        for (from, to, link) in self.each() {
            if link.wrong > 0 {
                let (wrong, first) = (elements(link.wrong), link.first_wrong.unwrap_or_default());
                problems.push(format!("rank {from} to {to}: {wrong} wrong, the first at index {first}"));
            }
            if let Some(limit) = min_bandwidth.filter(|limit| link.bandwidth < *limit) {
                problems.push(format!("rank {from} to {to}: {:.3} GB/s, expected {limit}", link.bandwidth));
            }
            if let Some(limit) = max_latency.filter(|limit| from < to && link.latency_us > *limit) {
                let latency_us = link.latency_us;
                problems.push(format!("ranks {from} and {to}: {latency_us:.2} us, expected {limit} at most"));
            }
        }
        problems
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, &Link)> + Clone {
        self.links.iter().enumerate().flat_map(|(from, row)| {
            row.iter().enumerate().filter_map(move |(to, link)| Some((from, to, link.as_ref()?)))
        })
    }

    fn matrix(&self, f: &mut Formatter<'_>, value: impl Fn(&Link) -> String) -> fmt::Result {
        write!(f, "{:>10}", "from \\ to")?;
        (0..self.links.len()).try_for_each(|to| write!(f, "  {to:>8}"))?;
        writeln!(f)?;
        for (from, row) in self.links.iter().enumerate() {
            write!(f, "{from:>10}")?;
            for link in row {
                write!(f, "  {:>8}", link.as_ref().map_or_else(|| "-".into(), &value))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Display for Pairs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {} with NCCL {}", self.program, in_line(&self.library))?;
        writeln!(f, "# {} ranks ({}), {}", self.links.len(), in_line(&self.launch), in_line(&self.device))?;
        writeln!(f, "# Bandwidth (GB/s) of {} messages of {} bytes", self.iters, self.bytes)?;
        self.matrix(f, |link| format!("{:.3}", link.bandwidth))?;
        writeln!(f, "# Latency (us) of 8 bytes, half of a round trip")?;
        self.matrix(f, |link| format!("{:.2}", link.latency_us))?;
        let (measured, number) = (self.each().count() / 2, self.number());
        if measured < number {
            writeln!(f, "# Interrupted after {measured} of {number} pairs")?;
        }
        for (from, to, link) in self.each().filter(|(_, _, link)| link.wrong > 0) {
            writeln!(f, "# rank {from} to {to}: {} wrong", elements(link.wrong))?;
        }
        let figures = |(latency_us, bandwidth)| format!("{bandwidth:.3} GB/s and {latency_us:.2} us");
        let all = medians(self.each()).map(figures).unwrap_or_default();
        for RankSummary { rank, latency_us, bandwidth, .. } in self.ranks.iter().filter(|rank| rank.is_slow) {
            let own = latency_us.zip(*bandwidth).map(figures).unwrap_or_default();
            writeln!(f, "# rank {rank} is slow: the median of its links is {own}, that of all {all}")?;
        }
        Ok(())
    }
}

fn elements(number: u64) -> String {
    if number == 1 { "1 element".into() } else { format!("{number} elements") }
}

/// Returns the median latency and bandwidth, or `None` without links. Of two middle values, the higher one is the median.
fn medians<'a>(links: impl Iterator<Item = (usize, usize, &'a Link)> + Clone) -> Option<(f64, f64)> {
    let median = |value: fn(&Link) -> f64| {
        let mut values = links.clone().map(|(_, _, link)| value(link)).sorted_by(f64::total_cmp);
        values.nth(values.len() / 2)
    };
    Some((median(|link| link.latency_us)?, median(|link| link.bandwidth)?))
}

/// The maximum number of ranks for which each cell shows its value.
const MAX_WITH_TEXT: usize = 16;
/// The approximate width of a matrix in pixels. With more than 80 ranks, it is wider.
const WIDTH: i32 = 480;
/// The space above a matrix for its title and rank numbers; `SIDE` is the space at its left.
const HEAD: i32 = 96;
const SIDE: i32 = 62;
const MARGIN: i32 = 20;
/// The space below a matrix for its scale.
const FOOT: i32 = 66;

/// The colors of a scale, from the best value to the worst, in decreasing brightness.
const SCALE: [(u8, u8, u8); 5] =
    [(245, 235, 158), (141, 208, 122), (58, 160, 144), (59, 92, 149), (66, 22, 92)];

/// The color of text on dark cells: not the background's white, which dark mode replaces.
const NEARLY_WHITE: RGBColor = RGBColor(254, 254, 254);

struct Map<'a> {
    title: String,
    unit: &'a str,
    value: fn(&Link) -> f64,
    is_more_better: bool,
}

fn draw(pairs: &Pairs) -> Result<String> {
    let ranks = pairs.links.len() as i32;
    let cell = (WIDTH / ranks).max(6);
    let width = SIDE + cell * ranks + 2 * MARGIN;
    picture((2 * width as u32, (HEAD + cell * ranks + FOOT) as u32), |area| {
        let title = format!("{ranks} ranks ({}), NCCL {}", in_line(&pairs.launch), in_line(&pairs.library));
        label(area, title, (MARGIN, 10), 15, (HPos::Left, VPos::Top))?;
        let (left, right) = area.split_horizontally(width);
        let bandwidth = Map {
            title: format!("Bandwidth of {} bytes", pairs.bytes),
            unit: "GB/s",
            value: |link| link.bandwidth,
            is_more_better: true,
        };
        let latency = Map {
            title: "Latency of 8 bytes".into(),
            unit: "us",
            value: |link| link.latency_us,
            is_more_better: false,
        };
        bandwidth.draw(&left, &pairs.links, cell)?;
        latency.draw(&right, &pairs.links, cell)
    })
}

impl Map<'_> {
    fn draw(&self, area: &Area<'_>, links: &[Vec<Option<Link>>], cell: i32) -> Result<()> {
        let (left, side) = (SIDE + MARGIN, cell * links.len() as i32);
        let values = || links.iter().flatten().flatten().map(self.value).filter(|value| *value > 0.0);
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        let title = format!("{} ({})", self.title, self.unit);
        label(area, title, (left, 36), 17, (HPos::Left, VPos::Top))?;
        label(area, "to rank".into(), (left + side / 2, 62), 13, (HPos::Center, VPos::Top))?;
        let turned = style(13, (HPos::Center, VPos::Center)).transform(FontTransform::Rotate270);
        area.draw(&Text::new("from rank", (MARGIN + 2, HEAD + side / 2), turned))?;
        // As many labels as there is room for.
        for rank in (0..links.len()).step_by((26 / cell + 1) as usize) {
            let middle = cell * rank as i32 + cell / 2;
            let text = rank.to_string();
            label(area, text.clone(), (left + middle, HEAD - 6), 13, (HPos::Center, VPos::Bottom))?;
            label(area, text, (left - 8, HEAD + middle), 13, (HPos::Right, VPos::Center))?;
        }
        for (from, row) in links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let Some(value) = link.as_ref().map(self.value) else { continue };
                let (x, y) = (left + cell * to as i32, HEAD + cell * from as i32);
                let badness = self.badness(value, least, most);
                let color = color(badness);
                area.draw(&Rectangle::new([(x, y), (x + cell - 1, y + cell - 1)], color.filled()))?;
                if links.len() <= MAX_WITH_TEXT {
                    let text = (FONT, (cell / 4).clamp(9, 14)).into_font();
                    let text = text.color(if badness < 0.5 { &BLACK } else { &NEARLY_WHITE });
                    let text = text.pos(Pos::new(HPos::Center, VPos::Center));
                    area.draw(&Text::new(digits(value, 3, 3), (x + cell / 2, y + cell / 2), text))?;
                }
            }
        }
        self.scale(area, left, HEAD + side + 18, side, least, most)
    }

    fn scale(&self, area: &Area<'_>, left: i32, top: i32, width: i32, least: f64, most: f64) -> Result<()> {
        const STEPS: i32 = 60;
        for step in 0..STEPS {
            let (begin, end) = (left + width * step / STEPS, left + width * (step + 1) / STEPS);
            let color = color(f64::from(step) / f64::from(STEPS - 1));
            area.draw(&Rectangle::new([(begin, top), (end, top + 12)], color.filled()))?;
        }
        let (best, worst) = if self.is_more_better { (most, least) } else { (least, most) };
        let text = |value| format!("{} {}", digits(value, 3, 3), self.unit);
        label(area, text(best), (left, top + 18), 13, (HPos::Left, VPos::Top))?;
        label(area, text(worst), (left + width, top + 18), 13, (HPos::Right, VPos::Top))
    }

    /// Returns the position of a value on the logarithmic scale, from 0 for the best to 1 for the worst.
    fn badness(&self, value: f64, least: f64, most: f64) -> f64 {
        let place = (value / least).ln() / (most / least).ln();
        let place = if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 };
        if self.is_more_better && most > least { 1.0 - place } else { place }
    }
}

fn color(place: f64) -> RGBColor {
    let scaled = place.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let index = (scaled as usize).min(SCALE.len() - 2);
    let (low, high, part) = (SCALE[index], SCALE[index + 1], scaled - index as f64);
    let mix = |low: u8, high: u8| (f64::from(low) + (f64::from(high) - f64::from(low)) * part).round() as u8;
    RGBColor(mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}
