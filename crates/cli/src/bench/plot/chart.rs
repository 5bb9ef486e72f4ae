//! The picture: two charts with logarithmic axes, and a legend below. Its colors are those of all pictures.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Point, Series};
use crate::bench::statistics::Statistic;

/// The colors that pictures are drawn with, which [`themed`] replaces: each is used for nothing else.
const BACKGROUND: RGBColor = RGBColor(254, 254, 254);
const FOREGROUND: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);

const SERIES: [RGBColor; 8] = [
    RGBColor(3, 3, 1),
    RGBColor(3, 3, 2),
    RGBColor(3, 3, 3),
    RGBColor(3, 3, 4),
    RGBColor(3, 3, 5),
    RGBColor(3, 3, 6),
    RGBColor(3, 3, 7),
    RGBColor(3, 3, 8),
];

/// The colors on a light and on a dark background.
const COLORS: [(RGBColor, &str, &str); 11] = [
    (BACKGROUND, "#ffffff", "#15181d"),
    (FOREGROUND, "#1f2328", "#e6e8eb"),
    (GRID, "#d8dce1", "#363c45"),
    (SERIES[0], "#0b63c5", "#63a9f5"),
    (SERIES[1], "#c2410c", "#fb9157"),
    (SERIES[2], "#15803d", "#5fd08a"),
    (SERIES[3], "#9333a8", "#d68be6"),
    (SERIES[4], "#a16207", "#e3b341"),
    (SERIES[5], "#0e7490", "#4fc3dc"),
    (SERIES[6], "#be185d", "#f583b1"),
    (SERIES[7], "#57606a", "#a8b1bb"),
];

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 400;
/// The height of a line of the legend.
const LINE: u32 = 24;
const MARGIN: u32 = 14;
pub(crate) const FONT: &str = "sans-serif";

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws series, at least one with a point.
pub(crate) fn draw(series: &[Series], statistic: Statistic) -> Result<String> {
    let height = HEIGHT + LINE * series.len() as u32 + MARGIN;
    picture((WIDTH, height), |area| {
        let (charts, legend) = area.split_vertically(HEIGHT);
        let (left, right) = charts.split_horizontally(WIDTH / 2);
        chart(&left, &format!("Bus bandwidth, {statistic}"), "GB/s", series, |point| point.bandwidth)?;
        chart(&right, &format!("Time, {statistic}"), "microseconds", series, |point| point.time_us)?;
        for (index, series) in series.iter().enumerate() {
            let (x, y) = (70, (LINE * index as u32 + LINE / 2) as i32);
            let color = SERIES[index % SERIES.len()];
            legend.draw(&PathElement::new([(x, y), (x + 28, y)], color.stroke_width(3)))?;
            legend.draw(&Circle::new((x + 14, y), 4, color.filled()))?;
            label(&legend, series.label.clone(), (x + 38, y), 15, (HPos::Left, VPos::Center))?;
        }
        Ok(())
    })
}

pub(crate) fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&BACKGROUND)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(themed(svg))
}

pub(crate) fn label(
    area: &Area<'_>,
    text: String,
    place: (i32, i32),
    size: i32,
    anchor: (HPos, VPos),
) -> Result<()> {
    Ok(area.draw(&Text::new(text, place, style(size, anchor)))?)
}

pub(crate) fn style(size: i32, (horizontal, vertical): (HPos, VPos)) -> TextStyle<'static> {
    (FONT, size).into_font().color(&FOREGROUND).pos(Pos::new(horizontal, vertical))
}

fn chart(
    area: &Area<'_>,
    title: &str,
    unit: &str,
    series: &[Series],
    value: impl Fn(&Point) -> f64,
) -> Result<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (across, up) = (
        powers(points().map(|point| point.bytes.log2())),
        powers(points().map(|point| value(point).log10())),
    );
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 19).into_font().color(&FOREGROUND))
        .margin(MARGIN)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(Axis::new(across, 9), Axis::new(up, 8))?;
    let style = |size: i32| (FONT, size).into_font().color(&FOREGROUND);
    chart
        .configure_mesh()
        .axis_style(FOREGROUND)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(style(13))
        .axis_desc_style(style(14))
        .x_desc("size in bytes")
        .y_desc(unit)
        .x_label_formatter(&|power| show_bytes(power.exp2()))
        .y_label_formatter(&|power| show_power(*power))
        .draw()?;
    for (index, series) in series.iter().enumerate() {
        let color = SERIES[index % SERIES.len()];
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|point| (point.bytes.log2(), value(point).log10())).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    Ok(())
}

/// Returns the whole powers around those of values, so that the axes begin and end with a label.
fn powers(of_values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for power in of_values {
        (least, most) = (least.min(power), most.max(power));
    }
    let (least, most) = (least.floor() as i32, most.ceil() as i32);
    (least, most.max(least + 1))
}

/// An axis of powers. The scale of plotters for logarithms does not end for values that are far apart.
struct Axis {
    powers: RangedCoordf64,
    labels: Vec<f64>,
}

impl Axis {
    /// Creates an axis from one power to another, with about so many labels at most.
    fn new((least, most): (i32, i32), labels: i32) -> Self {
        let step = (most - least) / (labels + 1) + 1;
        let labels = (least..=most).step_by(step as usize).map(f64::from).collect();
        Self { powers: (f64::from(least)..f64::from(most)).into(), labels }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, power: &f64, limit: (i32, i32)) -> i32 {
        self.powers.map(power, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { vec![] } else { self.labels.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.powers.range()
    }
}

fn show_power(power: f64) -> String {
    if (-6.0..=9.0).contains(&power) { show(10_f64.powf(power)) } else { format!("1e{power}") }
}

fn show_bytes(bytes: f64) -> String {
    let (unit, name) = match bytes {
        ..1024.0 => (1.0, ""),
        ..1_048_576.0 => (1024.0, "K"),
        ..1_073_741_824.0 => (1_048_576.0, "M"),
        _ => (1_073_741_824.0, "G"),
    };
    format!("{}{name}", show(bytes / unit))
}

fn show(value: f64) -> String {
    let decimals = if value >= 1.0 { 0 } else { (-value.log10()).ceil().max(0.0) as usize };
    format!("{value:.decimals$}")
}

/// Gives a picture its colors: those on a light background, and a style sheet with the others.
fn themed(mut svg: String) -> String {
    let mut dark = String::new();
    for (color, light_color, dark_color) in COLORS {
        let RGBColor(red, green, blue) = color;
        svg = svg.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"{light_color}\""));
        for attribute in ["fill", "stroke"] {
            dark.push_str(&format!("[{attribute}=\"{light_color}\"]{{{attribute}:{dark_color}}}"));
        }
    }
    let style = format!("<style>@media (prefers-color-scheme: dark){{{dark}}}</style>\n");
    let end =
        svg.find("xmlns").and_then(|at| svg[at..].find('>').map(|end| at + end + 1)).unwrap_or_default();
    svg.insert_str(end, &style);
    svg
}

#[cfg(test)]
#[path = "../../../tests/unit/chart.rs"]
mod tests;
