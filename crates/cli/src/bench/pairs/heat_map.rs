//! The picture of all pairs: a cell for each, darker where it is slower.

use super::matrix::{Link, Pairs};
use crate::bench::statistics::digits;
use crate::bench::svg::Svg;

/// The ranks up to which each cell shows its value.
const MAX_WITH_TEXT: usize = 16;
/// The width of a matrix at least.
const WIDTH: f64 = 480.0;
/// The room for a matrix's title and the ranks at its top and left.
const HEAD: f64 = 96.0;
const SIDE: f64 = 62.0;
const MARGIN: f64 = 20.0;
/// The room for the scale below.
const FOOT: f64 = 66.0;

/// The colors of a scale, from the best value to the worst, which differ in brightness too.
const SCALE: [[f64; 3]; 5] = [
    [245.0, 235.0, 158.0],
    [141.0, 208.0, 122.0],
    [58.0, 160.0, 144.0],
    [59.0, 92.0, 149.0],
    [66.0, 22.0, 92.0],
];

struct Map<'a> {
    title: String,
    unit: &'a str,
    value: fn(&Link) -> f64,
    is_more_better: bool,
}

pub(crate) fn draw(pairs: &Pairs) -> String {
    let ranks = pairs.links.len() as f64;
    let cell = (WIDTH / ranks).floor().max(6.0);
    let width = SIDE + cell * ranks + 2.0 * MARGIN;
    let mut svg = Svg::new(2.0 * width, HEAD + cell * ranks + FOOT);
    svg.text((MARGIN, 16.0), "start", 12, &pairs.title());
    let title = format!("Bandwidth of {} bytes", pairs.bytes);
    let bandwidth = Map { title, unit: "GB/s", value: |link| link.bandwidth, is_more_better: true };
    bandwidth.draw(&mut svg, 0.0, &pairs.links, cell);
    let title = "Latency of 8 bytes".into();
    let latency = Map { title, unit: "us", value: |link| link.latency_us, is_more_better: false };
    latency.draw(&mut svg, width, &pairs.links, cell);
    svg.finish()
}

impl Map<'_> {
    fn draw(&self, svg: &mut Svg, start: f64, links: &[Vec<Option<Link>>], cell: f64) {
        let (left, side) = (start + SIDE + MARGIN, cell * links.len() as f64);
        let values = || links.iter().flatten().flatten().map(self.value).filter(|value| *value > 0.0);
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        svg.text((left, 43.0), "start", 14, &format!("{} ({})", self.title, self.unit));
        svg.text((left + side / 2.0, 68.0), "middle", 11, "to rank");
        svg.text((left - 8.0, HEAD - 12.0), "end", 11, "from rank");
        // As many labels as there is room for.
        for rank in (0..links.len()).step_by((26.0 / cell) as usize + 1) {
            let middle = cell * (rank as f64 + 0.5);
            svg.text((left + middle, HEAD - 12.0), "middle", 11, &rank.to_string());
            svg.text((left - 8.0, HEAD + middle), "end", 11, &rank.to_string());
        }
        for (from, row) in links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let Some(value) = link.as_ref().map(self.value) else { continue };
                let (x, y) = (left + cell * to as f64, HEAD + cell * from as f64);
                let badness = self.badness(value, least, most);
                svg.rectangle((x, y), (cell - 1.0, cell - 1.0), color(badness));
                if links.len() <= MAX_WITH_TEXT {
                    let place = (x + cell / 2.0, y + cell / 2.0);
                    let size = (cell / 4.0).clamp(8.0, 12.0) as u32;
                    let color = if badness < 0.5 { "#000000" } else { "#fefefe" };
                    svg.colored_text(place, "middle", size, color, &digits(value, 3, 3));
                }
            }
        }
        self.scale(svg, (left, HEAD + side + 18.0), side, least, most);
    }

    fn scale(&self, svg: &mut Svg, (left, top): (f64, f64), width: f64, least: f64, most: f64) {
        const STEPS: i32 = 60;
        for step in (0..STEPS).map(f64::from) {
            let part = width / f64::from(STEPS);
            svg.rectangle((left + part * step, top), (part + 0.5, 12.0), color(step / f64::from(STEPS - 1)));
        }
        let (best, worst) = if self.is_more_better { (most, least) } else { (least, most) };
        let text = |value| format!("{} {}", digits(value, 3, 3), self.unit);
        svg.text((left, top + 24.0), "start", 11, &text(best));
        svg.text((left + width, top + 24.0), "end", 11, &text(worst));
    }

    /// Returns the place of a value on the logarithmic scale: 0 for the best, 1 for the worst.
    fn badness(&self, value: f64, least: f64, most: f64) -> f64 {
        let place = (value / least).ln() / (most / least).ln();
        let place = if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 };
        if self.is_more_better && most > least { 1.0 - place } else { place }
    }
}

fn color(place: f64) -> String {
    let scaled = place.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let index = (scaled as usize).min(SCALE.len() - 2);
    let mix = |part: usize| {
        let (low, high) = (SCALE[index][part], SCALE[index + 1][part]);
        (low + (high - low) * (scaled - index as f64)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}
