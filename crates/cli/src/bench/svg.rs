//! Pictures in SVG, for light and dark backgrounds.

use std::fmt::{Display, Write};

use crate::output::in_xml;

/// A color on a light background, and on a dark one.
pub(crate) type Color = (&'static str, &'static str);

const BACKGROUND: Color = ("#ffffff", "#15181d");
pub(crate) const FOREGROUND: Color = ("#1f2328", "#e6e8eb");
pub(crate) const GRID: Color = ("#d8dce1", "#363c45");
pub(crate) const SERIES: [Color; 8] = [
    ("#0b63c5", "#63a9f5"),
    ("#c2410c", "#fb9157"),
    ("#15803d", "#5fd08a"),
    ("#9333a8", "#d68be6"),
    ("#a16207", "#e3b341"),
    ("#0e7490", "#4fc3dc"),
    ("#be185d", "#f583b1"),
    ("#57606a", "#a8b1bb"),
];

pub(crate) struct Svg(String);

// Writing to a string cannot fail.
impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let colors = [BACKGROUND, FOREGROUND, GRID].into_iter().chain(SERIES);
        let dark =
            |(light, dark)| format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}");
        let dark: String = colors.map(dark).collect();
        let mut svg = Self(format!(
            "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
             font-family=\"sans-serif\">\n<style>@media (prefers-color-scheme: dark){{{dark}}}</style>\n"
        ));
        svg.rectangle((0.0, 0.0), (width, height), BACKGROUND.0);
        svg
    }

    pub(crate) fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: impl Display) {
        let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        let _ = writeln!(self.0, "<rect {place} fill=\"{fill}\"/>");
    }

    pub(crate) fn line(&mut self, points: &[(f64, f64)], (color, _): Color, width: u32) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ = writeln!(
            self.0,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>"
        );
    }

    pub(crate) fn circle(&mut self, (x, y): (f64, f64), radius: u32, (color, _): Color) {
        let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\"/>");
    }

    /// Writes a text that is centered vertically, and horizontally begins (`start`), ends (`end`) or has its middle at the place.
    pub(crate) fn text(&mut self, place: (f64, f64), anchor: &str, size: u32, text: &str) {
        self.colored_text(place, anchor, size, FOREGROUND.0, text);
    }

    pub(crate) fn colored_text(
        &mut self,
        (x, y): (f64, f64),
        anchor: &str,
        size: u32,
        color: &str,
        text: &str,
    ) {
        let style = format!("text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{color}\"");
        let text = in_xml(text);
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" dy=\"0.35em\" {style}>{text}</text>");
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}
