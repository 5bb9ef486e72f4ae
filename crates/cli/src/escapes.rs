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
mod tests {
    use std::borrow::Cow;

    use super::{in_line, in_lines};

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            in_line("a\u{1b}[2J\0\u{7f}\u{9b}\r\n\t\u{ffff}"),
            r"a\u001b[2J\u0000\u007f\u009b\u000d\u000a\u0009\uffff"
        );
        assert_eq!(in_lines("a\n\tb\r\u{1b}"), "a\n\tb\\u000d\\u001b");
    }

    #[test]
    fn text_without_control_characters_is_the_same() {
        for text in ["", "all_reduce", r"C:\u", "ä\u{a0}→"] {
            assert!(matches!(in_line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({ "name": "\u{7f}\u{1b}\n\u{9b}\u{ffff}" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = in_lines(&text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        assert!(escaped.is_ascii(), "{escaped}");
    }
}
