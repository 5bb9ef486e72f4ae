//! Escapes of control characters, in text of files and of other processes: a terminal obeys them, and XML has none.

use std::borrow::Cow;

/// Returns a text of one line, with an escape such as `\u001b` in the place of each control character.
pub(crate) fn in_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Returns a text of several lines, of whose control characters newlines and tabs stay. JSON remains the same: it has them in
/// strings alone, and these escapes.
pub(crate) fn in_lines(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

/// Returns a text of XML or HTML.
pub(crate) fn in_xml(text: &str) -> String {
    let text = in_lines(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    // The last two are no control characters, and no characters of XML.
    let is_escaped = |character: char| {
        (character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}')) && !stays(character)
    };
    if !text.chars().any(is_escaped) {
        return text.into();
    }
    let shown = |character: char| match is_escaped(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.into(),
    };
    text.chars().map(shown).collect::<String>().into()
}

#[cfg(test)]
#[path = "../tests/unit/escapes.rs"]
mod tests;
