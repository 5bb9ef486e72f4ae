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
