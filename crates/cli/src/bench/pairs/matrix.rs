//! The measurements of all pairs, and their heat map, where slower pairs are darker.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use itertools::Itertools;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

use crate::bench::plot::{Area, FONT, label, picture, style};
use crate::bench::start::Job;
use crate::bench::statistics::digits;
use crate::output::in_line;

const SCHEMA: u32 = 1;

/// A rank counts as slow if the median of its links is worse than the median of all links by this factor.
const SLOW: f64 = 4.0;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Pairs {
    schema: u32,
    program: String,
    /// The version of NCCL and where it comes from.
    library: String,
    device: String,
    launch: String,
    pub(crate) bytes: u64,
    iters: usize,
    /// `links[a][b]` is the link from rank a to rank b; `None` if a equals b, or before the measurement.
    pub(crate) links: Vec<Vec<Option<Link>>>,
    ranks: Vec<Rank>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Half the round-trip time of 8 bytes, the minimum of ten measurements.
    pub(crate) latency_us: f64,
    pub(crate) median_latency_us: f64,
    /// In GB/s, the maximum of ten measurements.
    pub(crate) bandwidth: f64,
    pub(crate) median_bandwidth: f64,
    /// The mismatches of one send.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rank {
    rank: usize,
    /// The median of its latencies; `None` if none of its links has been measured.
    latency_us: Option<f64>,
    /// The median of its bandwidths in both directions.
    bandwidth: Option<f64>,
    /// The mismatches in the elements that it sent.
    wrong: u64,
    /// Set if its median latency or bandwidth is worse than the median of all links by [`SLOW`].
    is_slow: bool,
}

impl Pairs {
    pub(crate) fn new(job: &Job, device: String, bytes: u64, iters: usize) -> Self {
        Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            library: format!("{} ({})", job.nccl.version(), job.nccl.backend()),
            device,
            launch: job.launch.clone(),
            bytes,
            iters,
            links: vec![vec![None; job.size]; job.size],
            ranks: vec![],
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.links.len() * (self.links.len() - 1) / 2
    }

    pub(crate) fn judge(&mut self) {
        let all = medians(self.each());
        let rank = |rank: usize| {
            let own = medians(self.each().filter(|(from, to, _)| [*from, *to].contains(&rank)));
            let is_slow = all.zip(own).is_some_and(|(all, own)| own.0 > SLOW * all.0 || all.1 > SLOW * own.1);
            let (latency_us, bandwidth) = own.unzip();
            let wrong = self.links[rank].iter().flatten().map(|link| link.wrong).sum();
            Rank { rank, latency_us, bandwidth, wrong, is_slow: is_slow && self.links.len() > 2 }
        };
        self.ranks = (0..self.links.len()).map(rank).collect();
    }

    pub(crate) fn problems(&self, min_bandwidth: Option<f64>, max_latency: Option<f64>) -> Vec<String> {
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

    pub(crate) fn title(&self) -> String {
        format!("{} ranks ({}), NCCL {}", self.links.len(), in_line(&self.launch), in_line(&self.library))
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
        for Rank { rank, latency_us, bandwidth, .. } in self.ranks.iter().filter(|rank| rank.is_slow) {
            let own = latency_us.zip(*bandwidth).map(figures).unwrap_or_default();
            writeln!(f, "# rank {rank} is slow: the median of its links is {own}, that of all {all}")?;
        }
        Ok(())
    }
}

fn elements(number: u64) -> String {
    if number == 1 { "1 element".into() } else { format!("{number} elements") }
}

/// Returns the medians of latency and bandwidth, the upper of two middle values; `None` without links.
fn medians<'a>(links: impl Iterator<Item = (usize, usize, &'a Link)> + Clone) -> Option<(f64, f64)> {
    let median = |value: fn(&Link) -> f64| {
        let mut values = links.clone().map(|(_, _, link)| value(link)).sorted_by(f64::total_cmp);
        values.nth(values.len() / 2)
    };
    Some((median(|link| link.latency_us)?, median(|link| link.bandwidth)?))
}

/// The maximum number of ranks for which each cell shows its value.
const MAX_WITH_TEXT: usize = 16;
/// The minimum width of a matrix.
const WIDTH: i32 = 480;
/// The space for a matrix's title, and the ranks at its top and left.
const HEAD: i32 = 96;
const SIDE: i32 = 62;
const MARGIN: i32 = 20;
/// The space for the scale below.
const FOOT: i32 = 66;

/// The colors of a scale, from the best value to the worst, which differ in brightness too.
const SCALE: [(u8, u8, u8); 5] =
    [(245, 235, 158), (141, 208, 122), (58, 160, 144), (59, 92, 149), (66, 22, 92)];

/// Not the color of the background, which differs in dark mode.
const NEARLY_WHITE: RGBColor = RGBColor(254, 254, 254);

struct Map<'a> {
    title: String,
    unit: &'a str,
    value: fn(&Link) -> f64,
    is_more_better: bool,
}

pub(crate) fn draw(pairs: &Pairs) -> Result<String> {
    let ranks = pairs.links.len() as i32;
    let cell = (WIDTH / ranks).max(6);
    let width = SIDE + cell * ranks + 2 * MARGIN;
    picture((2 * width as u32, (HEAD + cell * ranks + FOOT) as u32), |area| {
        label(area, pairs.title(), (MARGIN, 10), 15, (HPos::Left, VPos::Top))?;
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
        let step = (26 / cell + 1) as usize;
        for rank in (0..links.len()).step_by(step) {
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
