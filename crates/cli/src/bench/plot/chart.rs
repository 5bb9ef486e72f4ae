//! The picture: two charts with logarithmic axes, and a legend below.

use super::series::{Point, Series};
use super::svg::{Picture, SERIES};
use crate::bench::output::statistic::Statistic;

/// The size of a chart, and the margins around its axes.
const WIDTH: i32 = 500;
const HEIGHT: i32 = 400;
const LEFT: i32 = 78;
const RIGHT: i32 = 14;
const TOP: i32 = 40;
const BOTTOM: i32 = 60;
/// The height of a line of the legend.
const LINE: i32 = 24;

/// Draws series, at least one with a point.
pub(crate) fn draw(series: &[Series], statistic: Statistic) -> String {
    let mut picture = Picture::new(2 * WIDTH, HEIGHT + LINE * series.len() as i32 + RIGHT);
    let title = format!("Bus bandwidth, {statistic}");
    chart(&mut picture, 0, &title, "GB/s", series, |point| point.bandwidth);
    chart(&mut picture, WIDTH, &format!("Time, {statistic}"), "microseconds", series, |point| point.time_us);
    for (index, series) in series.iter().enumerate() {
        let y = HEIGHT + LINE * index as i32 + LINE / 2;
        let color = index % SERIES;
        picture.add(format_args!("<path d=\"M70 {y}h28\" class=\"series{color}-line\" stroke-width=\"3\"/>"));
        picture.add(format_args!("<circle cx=\"84\" cy=\"{y}\" r=\"4\" class=\"series{color}\"/>"));
        picture.text((108, y + 5), 15, "start", "class=\"fore\"", &series.label);
    }
    picture.finish()
}

fn chart(
    picture: &mut Picture,
    left: i32,
    title: &str,
    unit: &str,
    series: &[Series],
    value: impl Fn(&Point) -> f64,
) {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = powers(points().map(|point| point.bytes.log2()));
    let up = powers(points().map(|point| value(point).log10()));
    let (x0, x1, y0, y1) = (left + LEFT, left + WIDTH - RIGHT, HEIGHT - BOTTOM, TOP);
    let place = |power: f64, (least, most): (i32, i32), from: i32, to: i32| {
        f64::from(from) + (power - f64::from(least)) / f64::from(most - least) * f64::from(to - from)
    };
    let (x, y) = (|power| place(power, across, x0, x1), |power| place(power, up, y0, y1));
    let fore = "class=\"fore\"";
    picture.text(((x0 + x1) / 2, 26), 19, "middle", fore, title);
    picture.text(((x0 + x1) / 2, HEIGHT - 12), 14, "middle", fore, "size in bytes");
    picture.rotated_text((left + 20, (y0 + y1) / 2), 14, unit);
    for power in labels(across, 9) {
        let x = x(power);
        picture.add(format_args!("<path d=\"M{x:.1} {y0}V{y1}\" class=\"grid-line\"/>"));
        picture.text((x as i32, y0 + 20), 13, "middle", fore, &show_bytes(power.exp2()));
    }
    for power in labels(up, 8) {
        let y = y(power);
        picture.add(format_args!("<path d=\"M{x0} {y:.1}H{x1}\" class=\"grid-line\"/>"));
        picture.text((x0 - 8, y as i32 + 4), 13, "end", fore, &show_power(power));
    }
    picture.add(format_args!("<path d=\"M{x0} {y1}V{y0}H{x1}\" class=\"fore-line\"/>"));
    for (index, series) in series.iter().enumerate() {
        let color = index % SERIES;
        let places = series.points.iter().map(|point| (x(point.bytes.log2()), y(value(point).log10())));
        let line: Vec<_> = places.clone().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let line = line.join(" ");
        picture.add(format_args!(
            "<polyline points=\"{line}\" class=\"series{color}-line\" stroke-width=\"2\"/>"
        ));
        for (x, y) in places {
            picture
                .add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" class=\"series{color}\"/>"));
        }
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

/// Returns about so many powers at most, from the first on.
fn labels((least, most): (i32, i32), number: i32) -> impl Iterator<Item = f64> + Clone {
    let step = (most - least) / (number + 1) + 1;
    (least..=most).step_by(step as usize).map(f64::from)
}

/// Shows a power of ten.
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

/// Shows a number without superfluous decimals.
fn show(value: f64) -> String {
    let decimals = if value >= 1.0 { 0 } else { (-value.log10()).ceil().max(0.0) as usize };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::{labels, powers, show, show_bytes, show_power};

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
        let powers_of_two = |values: &[f64]| powers(values.iter().map(|value| value.log2()));
        assert_eq!(powers_of_two(&[9.0, 1000.0]), (3, 10));
        assert_eq!(powers_of_two(&[8.0]), (3, 4));
    }

    #[test]
    fn axes_of_any_values_have_few_labels() {
        for (least, most) in [(0.001, 1000.0), (1e-300, 1e300), (5e-324, f64::MAX), (7.0, 7.0)] {
            let range = powers([least, most].map(f64::log10).into_iter());
            let labels: Vec<_> = labels(range, 8).collect();
            assert!((2..=9).contains(&labels.len()), "{least} to {most}: {labels:?}");
            assert_eq!(labels[0], f64::from(range.0));
        }
        assert_eq!(
            [-324.0, -6.0, 0.0, 9.0, 10.0].map(show_power),
            ["1e-324", "0.000001", "1", "1000000000", "1e10"]
        );
    }
}
