//! The picture of all pairs: a cell for each, darker where it is slower.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::matrix::{Link, Pairs};
use crate::bench::plot::chart::{Area, FONT, label, picture, style};
use crate::bench::statistics::digits;

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
const SCALE: [(u8, u8, u8); 5] =
    [(245, 235, 158), (141, 208, 122), (58, 160, 144), (59, 92, 149), (66, 22, 92)];

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
                    let text = text.color(if badness < 0.5 { &BLACK } else { &WHITE });
                    let text = text.pos(Pos::new(HPos::Center, VPos::Center));
                    area.draw(&Text::new(digits(value, 3, 3), (x + cell / 2, y + cell / 2), text))?;
                }
            }
        }
        self.scale(area, (left, HEAD + side + 18), side, least, most)
    }

    fn scale(
        &self,
        area: &Area<'_>,
        (left, top): (i32, i32),
        width: i32,
        least: f64,
        most: f64,
    ) -> Result<()> {
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

    /// Returns the place of a value on the logarithmic scale: 0 for the best, 1 for the worst.
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
