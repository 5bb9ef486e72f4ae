//! Colours of a picture, on a light and on a dark background.

use plotters::style::RGBColor;

/// The colours that pictures are drawn with, which [`themed`] replaces: each is used for nothing else.
pub(crate) const BACKGROUND: RGBColor = RGBColor(254, 254, 254);
pub(crate) const FOREGROUND: RGBColor = RGBColor(1, 1, 1);
pub(crate) const GRID: RGBColor = RGBColor(2, 2, 2);

/// The colours of series.
pub(crate) const SERIES: [RGBColor; 8] = [
    RGBColor(3, 3, 1),
    RGBColor(3, 3, 2),
    RGBColor(3, 3, 3),
    RGBColor(3, 3, 4),
    RGBColor(3, 3, 5),
    RGBColor(3, 3, 6),
    RGBColor(3, 3, 7),
    RGBColor(3, 3, 8),
];

/// The colours on a light and on a dark background.
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

/// Gives a picture its colours: those on a light background, and a style sheet with the others.
pub(crate) fn themed(mut svg: String) -> String {
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
mod tests {
    use super::themed;

    #[test]
    fn colours_have_a_light_and_a_dark_form() {
        let svg = themed("<svg xmlns=\"x\">\n<rect fill=\"#FEFEFE\" stroke=\"#010101\"/></svg>".into());
        assert!(svg.ends_with("<rect fill=\"#ffffff\" stroke=\"#1f2328\"/></svg>"), "{svg}");
        assert!(svg.starts_with("<svg xmlns=\"x\"><style>@media (prefers-color-scheme: dark){"), "{svg}");
        assert!(svg.contains("[fill=\"#ffffff\"]{fill:#15181d}"), "{svg}");
    }
}
