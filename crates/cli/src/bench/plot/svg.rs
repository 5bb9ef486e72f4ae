//! Pictures in SVG, with colors for a light and for a dark background.

use std::fmt::{Display, Write};

/// The number of colors for series.
pub(crate) const SERIES: usize = 8;

/// The style sheet: `back` and `fore` for areas and text, `fore-line` and `grid-line` for lines, `series0` and so on for points,
/// `series0-line` and so on for lines.
const COLORS: [(&str, &str, &str); 3 + SERIES] = [
    ("back", "#ffffff", "#15181d"),
    ("fore", "#1f2328", "#e6e8eb"),
    ("grid", "#d8dce1", "#363c45"),
    ("series0", "#0b63c5", "#63a9f5"),
    ("series1", "#c2410c", "#fb9157"),
    ("series2", "#15803d", "#5fd08a"),
    ("series3", "#9333a8", "#d68be6"),
    ("series4", "#a16207", "#e3b341"),
    ("series5", "#0e7490", "#4fc3dc"),
    ("series6", "#be185d", "#f583b1"),
    ("series7", "#57606a", "#a8b1bb"),
];

/// A picture, to which elements are added in the order of their drawing.
pub(crate) struct Picture(String);

impl Picture {
    pub(crate) fn new(width: i32, height: i32) -> Self {
        let rule = |class: &str, color: &str| {
            format!(".{class}{{fill:{color}}}.{class}-line{{stroke:{color};fill:none}}")
        };
        let light: String = COLORS.iter().map(|(class, light, _)| rule(class, light)).collect();
        let dark: String = COLORS.iter().map(|(class, _, dark)| rule(class, dark)).collect();
        let mut picture = Self(format!(
            "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             xmlns=\"http://www.w3.org/2000/svg\"><style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>\n"
        ));
        picture.add(format_args!("<rect width=\"{width}\" height=\"{height}\" class=\"back\"/>"));
        picture
    }

    /// Adds an element.
    pub(crate) fn add(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// Adds a text. `anchor` is `start`, `middle` or `end`; `style` has further attributes.
    pub(crate) fn text(&mut self, (x, y): (i32, i32), size: i32, anchor: &str, style: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\" {style}>\n{text}\n</text>"
        ));
    }

    /// Adds a text that is read from below.
    pub(crate) fn rotated_text(&mut self, (x, y): (i32, i32), size: i32, text: &str) {
        let style = format!("class=\"fore\" transform=\"rotate(270 {x} {y})\"");
        self.text((x, y), size, "middle", &style, text);
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}
