//! The picture: two charts with logarithmic axes, and a legend below.

use super::{Point, Series};
use crate::bench::statistics::Statistic;
use crate::bench::svg::{FOREGROUND, GRID, SERIES, Svg};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 400.0;
/// The height of a line of the legend.
const LINE: f64 = 24.0;

/// Draws series, at least one with a point.
pub(crate) fn draw(series: &[Series], statistic: Statistic) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT + LINE * series.len() as f64 + 14.0);
    chart(&mut svg, 0.0, &format!("Bus bandwidth, {statistic}"), "GB/s", series, |point| point.bandwidth);
    chart(&mut svg, WIDTH / 2.0, &format!("Time, {statistic}"), "microseconds", series, |point| {
        point.time_us
    });
    for (index, series) in series.iter().enumerate() {
        let (y, color) = (HEIGHT + LINE * (index as f64 + 0.5), SERIES[index % SERIES.len()]);
        svg.line(&[(70.0, y), (98.0, y)], color, 3);
        svg.circle((84.0, y), 4, color);
        svg.text((108.0, y), "start", 12, &series.label);
    }
    svg.finish()
}

fn chart(svg: &mut Svg, left: f64, title: &str, unit: &str, all: &[Series], value: fn(&Point) -> f64) {
    let points = || all.iter().flat_map(|series| &series.points);
    let across = powers(points().map(|point| point.bytes.log2()));
    let up = powers(points().map(|point| value(point).log10()));
    let (left, right, top, bottom) = (left + 78.0, left + WIDTH / 2.0 - 14.0, 40.0, HEIGHT - 60.0);
    let place = |power: f64, (least, most): (i32, i32)| (power - f64::from(least)) / f64::from(most - least);
    let x = |power: f64| left + place(power, across) * (right - left);
    let y = |power: f64| bottom - place(power, up) * (bottom - top);
    svg.text(((left + right) / 2.0, 22.0), "middle", 15, title);
    svg.text(((left + right) / 2.0, HEIGHT - 22.0), "middle", 12, "size in bytes");
    svg.text((left - 8.0, top - 18.0), "end", 12, unit);
    for power in labels(across, 9) {
        svg.line(&[(x(power), top), (x(power), bottom)], GRID, 1);
        svg.text((x(power), bottom + 14.0), "middle", 11, &show_bytes(power.exp2()));
    }
    for power in labels(up, 8) {
        svg.line(&[(left, y(power)), (right, y(power))], GRID, 1);
        svg.text((left - 8.0, y(power)), "end", 11, &show_power(power));
    }
    svg.line(&[(left, top), (left, bottom), (right, bottom)], FOREGROUND, 1);
    for (series, color) in all.iter().zip(SERIES.into_iter().cycle()) {
        let place = |point: &Point| (x(point.bytes.log2()), y(value(point).log10()));
        let points: Vec<_> = series.points.iter().map(place).collect();
        svg.line(&points, color, 2);
        points.into_iter().for_each(|point| svg.circle(point, 3, color));
    }
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

/// Returns the powers of an axis that have a label, so many at most.
fn labels((least, most): (i32, i32), limit: i32) -> impl Iterator<Item = f64> {
    let step = (most - least) / (limit + 1) + 1;
    (least..=most).step_by(step as usize).map(f64::from)
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

#[cfg(test)]
#[path = "../../../tests/unit/chart.rs"]
mod tests;
