//! The picture of all pairs: a cell for each, darker where it is slower.

use super::matrix::{Link, Pairs};
use crate::bench::plot::svg::Picture;

/// The ranks up to which each cell shows its value.
const MAX_WITH_TEXT: usize = 16;
/// The width of a matrix at least.
const WIDTH: i32 = 480;
/// The room for a matrix's title and the ranks at its top and left.
const HEAD: i32 = 96;
const SIDE: i32 = 62;
const MARGIN: i32 = 20;
/// The room for the scale below.
const FOOT: i32 = 66;

/// The colors of a scale, from the best value to the worst, which differ in brightness too.
const SCALE: [[u8; 3]; 5] = [[245, 235, 158], [141, 208, 122], [58, 160, 144], [59, 92, 149], [66, 22, 92]];

struct Map<'a> {
    title: String,
    unit: &'a str,
    value: fn(&Link) -> f64,
    is_more_better: bool,
    range: (f64, f64),
    /// The left edge of the first cell.
    left: i32,
}

/// Draws the matrices of bandwidth and latency, the one at the left of the other.
pub(crate) fn draw(pairs: &Pairs) -> String {
    let ranks = pairs.links.len() as i32;
    let cell = (WIDTH / ranks).max(6);
    let width = SIDE + cell * ranks + 2 * MARGIN;
    let mut picture = Picture::new(2 * width, HEAD + cell * ranks + FOOT);
    picture.text((MARGIN, 24), 15, "start", FORE, &pairs.title());
    let title = format!("Bandwidth of {} bytes", pairs.bytes());
    for (title, unit, value, is_more_better, start) in [
        (title, "GB/s", (|link| link.bandwidth) as fn(&Link) -> f64, true, 0),
        ("Latency of 8 bytes".into(), "us", |link| link.latency_us, false, width),
    ] {
        let values = pairs.links.iter().flatten().flatten().map(value).filter(|value| *value > 0.0);
        let range = values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| {
            (least.min(value), most.max(value))
        });
        let map = Map { title, unit, value, is_more_better, range, left: start + SIDE + MARGIN };
        map.draw(&mut picture, &pairs.links, cell);
    }
    picture.finish()
}

/// The style of texts outside the cells.
const FORE: &str = "class=\"fore\"";

impl Map<'_> {
    fn draw(&self, picture: &mut Picture, links: &[Vec<Option<Link>>], cell: i32) {
        let (left, side) = (self.left, cell * links.len() as i32);
        picture.text((left, 52), 17, "start", FORE, &format!("{} ({})", self.title, self.unit));
        picture.text((left + side / 2, 73), 13, "middle", FORE, "to rank");
        picture.rotated_text((left - SIDE + 6, HEAD + side / 2), 13, "from rank");
        // As many labels as there is room for.
        for rank in (0..links.len()).step_by((26 / cell + 1) as usize) {
            let (middle, text) = (cell * rank as i32 + cell / 2, rank.to_string());
            picture.text((left + middle, HEAD - 6), 13, "middle", FORE, &text);
            picture.text((left - 8, HEAD + middle + 4), 13, "end", FORE, &text);
        }
        for (from, row) in links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let Some(value) = link.as_ref().map(self.value) else { continue };
                let (x, y) = (left + cell * to as i32, HEAD + cell * from as i32);
                let badness = self.badness(value);
                rectangle(picture, (x, y), (cell - 1, cell - 1), badness);
                if links.len() <= MAX_WITH_TEXT {
                    let style = if badness < 0.5 { "fill=\"#000\"" } else { "fill=\"#fff\"" };
                    let (place, size) = ((x + cell / 2, y + cell / 2 + 4), (cell / 4).clamp(9, 14));
                    picture.text(place, size, "middle", style, &show(value));
                }
            }
        }
        self.scale(picture, HEAD + side + 18, side);
    }

    fn scale(&self, picture: &mut Picture, top: i32, width: i32) {
        const STEPS: i32 = 60;
        let (left, (least, most)) = (self.left, self.range);
        for step in 0..STEPS {
            let (begin, end) = (width * step / STEPS, width * (step + 1) / STEPS);
            let badness = f64::from(step) / f64::from(STEPS - 1);
            rectangle(picture, (left + begin, top), (end - begin, 12), badness);
        }
        let (best, worst) = if self.is_more_better { (most, least) } else { (least, most) };
        for (x, anchor, value) in [(left, "start", best), (left + width, "end", worst)] {
            picture.text((x, top + 30), 13, anchor, FORE, &format!("{} {}", show(value), self.unit));
        }
    }

    /// Returns the place of a value on the logarithmic scale: 0 for the best, 1 for the worst.
    fn badness(&self, value: f64) -> f64 {
        let (least, most) = self.range;
        let place = (value / least).ln() / (most / least).ln();
        let place = if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 };
        if self.is_more_better && most > least { 1.0 - place } else { place }
    }
}

/// Draws a rectangle in the color of a place on the scale.
fn rectangle(picture: &mut Picture, (x, y): (i32, i32), (width, height): (i32, i32), place: f64) {
    let scaled = place.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let index = (scaled as usize).min(SCALE.len() - 2);
    let part = scaled - index as f64;
    let [red, green, blue] = [0, 1, 2].map(|channel| {
        let [low, high] = [0, 1].map(|step| f64::from(SCALE[index + step][channel]));
        (low + (high - low) * part).round() as u8
    });
    picture.add(format_args!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
    ));
}

fn show(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
