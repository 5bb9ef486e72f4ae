//! The picture: two charts with logarithmic axes, and a legend below.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::series::{Point, Series};
use super::theme::{self, BACKGROUND, FOREGROUND, GRID, SERIES};
use crate::bench::output::statistic::Statistic;

const WIDTH: u32 = 1000;
/// The height of the charts.
const HEIGHT: u32 = 400;
/// The height of a line of the legend.
const LINE: u32 = 24;
const MARGIN: u32 = 14;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws series, at least one with a point.
pub(crate) fn draw(series: &[Series], statistic: Statistic) -> Result<String> {
    let mut svg = String::new();
    {
        let height = HEIGHT + LINE * series.len() as u32 + MARGIN;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&BACKGROUND)?;
        let (charts, legend) = area.split_vertically(HEIGHT);
        let (left, right) = charts.split_horizontally(WIDTH / 2);
        chart(&left, &format!("Bus bandwidth, {statistic}"), "GB/s", series, |point| point.bandwidth)?;
        chart(&right, &format!("Time, {statistic}"), "microseconds", series, |point| point.time_us)?;
        for (index, series) in series.iter().enumerate() {
            let (x, y) = (70, (LINE * index as u32 + LINE / 2) as i32);
            let color = SERIES[index % SERIES.len()];
            legend.draw(&PathElement::new([(x, y), (x + 28, y)], color.stroke_width(3)))?;
            legend.draw(&Circle::new((x + 14, y), 4, color.filled()))?;
            let style = (FONT, 15).into_font().color(&FOREGROUND).pos(Pos::new(HPos::Left, VPos::Center));
            legend.draw(&Text::new(series.label.clone(), (x + 38, y), style))?;
        }
        area.present()?;
    }
    Ok(theme::themed(svg))
}

fn chart(
    area: &Area<'_>,
    title: &str,
    unit: &str,
    series: &[Series],
    value: impl Fn(&Point) -> f64,
) -> Result<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (least, most) = range(points().map(|point| point.bytes), 2.0);
    let (lowest, highest) = range(points().map(&value), 10.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 19).into_font().color(&FOREGROUND))
        .margin(MARGIN)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d((least..most).log_scale().base(2.0), (lowest..highest).log_scale())?;
    let style = |size: i32| (FONT, size).into_font().color(&FOREGROUND);
    chart
        .configure_mesh()
        .axis_style(FOREGROUND)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_labels(9)
        .y_labels(8)
        .label_style(style(13))
        .axis_desc_style(style(14))
        .x_desc("size in bytes")
        .y_desc(unit)
        .x_label_formatter(&|bytes| show_bytes(*bytes))
        .y_label_formatter(&|value| show(*value))
        .draw()?;
    for (index, series) in series.iter().enumerate() {
        let color = SERIES[index % SERIES.len()];
        let points: Vec<(f64, f64)> = series.points.iter().map(|point| (point.bytes, value(point))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    Ok(())
}

/// Returns the powers of `base` around the values, so that the axes begin and end with a label.
fn range(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values {
        (least, most) = (least.min(value), most.max(value));
    }
    let power = |value: f64, round: fn(f64) -> f64| base.powf(round(value.log(base)));
    let (least, most) = (power(least, f64::floor), power(most, f64::ceil));
    if least < most { (least, most) } else { (least, least * base) }
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

/// Shows a number without superfluous decimals.
fn show(value: f64) -> String {
    let decimals = if value >= 1.0 { 0 } else { (-value.log10()).ceil().max(0.0) as usize };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::{range, show, show_bytes};

    #[test]
    fn labels_are_short() {
        assert_eq!(
            [8.0, 1024.0, 65_536.0, 1_048_576.0, 8_589_934_592.0].map(show_bytes),
            ["8", "1K", "64K", "1M", "8G"]
        );
        assert_eq!([0.001, 0.01, 0.1, 1.0, 1000.0].map(show), ["0.001", "0.01", "0.1", "1", "1000"]);
    }

    #[test]
    fn axes_end_at_powers() {
        assert_eq!(range([9.0, 1000.0].into_iter(), 2.0), (8.0, 1024.0));
        assert_eq!(range([8.0].into_iter(), 2.0), (8.0, 16.0));
    }
}
