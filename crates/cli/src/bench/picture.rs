//! Pictures in SVG, for light and dark backgrounds.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) const FONT: &str = "sans-serif";

const BACKGROUND: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(crate) const FOREGROUND: RGBColor = RGBColor(0x1f, 0x23, 0x28);
pub(crate) const GRID: RGBColor = RGBColor(0xd8, 0xdc, 0xe1);
pub(crate) const SERIES: [RGBColor; 8] = [
    RGBColor(0x0b, 0x63, 0xc5),
    RGBColor(0xc2, 0x41, 0x0c),
    RGBColor(0x15, 0x80, 0x3d),
    RGBColor(0x93, 0x33, 0xa8),
    RGBColor(0xa1, 0x62, 0x07),
    RGBColor(0x0e, 0x74, 0x90),
    RGBColor(0xbe, 0x18, 0x5d),
    RGBColor(0x57, 0x60, 0x6a),
];

/// The replacements of these colors on a dark background.
const DARK: [&str; 11] = [
    "#15181d", "#e6e8eb", "#363c45", "#63a9f5", "#fb9157", "#5fd08a", "#d68be6", "#e3b341", "#4fc3dc",
    "#f583b1", "#a8b1bb",
];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the drawing as SVG.
pub(crate) fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&BACKGROUND)?;
        draw(&area)?;
        area.present()?;
    }
    let colors = [BACKGROUND, FOREGROUND, GRID].into_iter().chain(SERIES).zip(DARK);
    let dark: String = colors
        .map(|(RGBColor(red, green, blue), dark)| {
            let light = format!("#{red:02X}{green:02X}{blue:02X}");
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
        })
        .collect();
    let start = svg.find('>').map_or(0, |end| end + 1);
    svg.insert_str(start, &format!("<style>@media (prefers-color-scheme: dark){{{dark}}}</style>\n"));
    Ok(svg)
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
