use std::fmt::Write;

/// A value that can be written as JSON or as a Python pickle.
///
/// Uses no other crate, so that recordings need no optional feature.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Document {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Self>),
    /// A list that is a tuple in Python.
    Tuple(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Document {
    pub(crate) fn object<K: Into<String>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Object(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// Returns the value as JSON (RFC 8259), on one line.
    pub(crate) fn to_json(&self) -> String {
        let mut json = String::new();
        self.write_json(&mut json);
        json
    }

    fn write_json(&self, json: &mut String) {
        match self {
            Self::Null => json.push_str("null"),
            Self::Bool(value) => json.push_str(if *value { "true" } else { "false" }),
            // Writing to a string does not fail.
            Self::Number(value) => drop(write!(json, "{value}")),
            Self::Text(text) => write_json_text(text, json),
            Self::List(values) | Self::Tuple(values) => {
                json.push('[');
                for (index, value) in values.iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { "," });
                    value.write_json(json);
                }
                json.push(']');
            }
            Self::Object(entries) => {
                json.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { "," });
                    write_json_text(key, json);
                    json.push(':');
                    value.write_json(json);
                }
                json.push('}');
            }
        }
    }

    /// Returns the value as a pickle of protocol 2, which every Python since 2.3 reads.
    pub(crate) fn to_pickle(&self) -> Vec<u8> {
        let mut pickle = b"\x80\x02".to_vec();
        self.write_pickle(&mut pickle);
        pickle.push(b'.');
        pickle
    }

    fn write_pickle(&self, pickle: &mut Vec<u8>) {
        match self {
            Self::Null => pickle.push(b'N'),
            Self::Bool(value) => pickle.push(if *value { 0x88 } else { 0x89 }),
            // LONG1: its length, then its bytes, little-endian and signed.
            Self::Number(value) => {
                pickle.extend([0x8a, 9]);
                pickle.extend(value.to_le_bytes());
                pickle.push(0);
            }
            Self::Text(text) => write_pickle_text(text, pickle),
            Self::List(values) => {
                pickle.extend(b"](");
                values.iter().for_each(|value| value.write_pickle(pickle));
                pickle.push(b'e');
            }
            Self::Tuple(values) => {
                pickle.push(b'(');
                values.iter().for_each(|value| value.write_pickle(pickle));
                pickle.push(b't');
            }
            Self::Object(entries) => {
                pickle.extend(b"}(");
                for (key, value) in entries {
                    write_pickle_text(key, pickle);
                    value.write_pickle(pickle);
                }
                pickle.push(b'u');
            }
        }
    }
}

fn write_json_text(text: &str, json: &mut String) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            character if character < ' ' => drop(write!(json, "\\u{:04x}", u32::from(character))),
            character => json.push(character),
        }
    }
    json.push('"');
}

fn write_pickle_text(text: &str, pickle: &mut Vec<u8>) {
    // No text here is longer than 4 GiB.
    let text = text.get(..u32::MAX as usize).unwrap_or(text);
    pickle.push(b'X');
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
}

impl From<&str> for Document {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Document {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Document {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Document {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Document {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl<T: Into<Self>> From<Option<T>> for Document {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::Document;

    fn document() -> Document {
        Document::object([
            ("text \"\\\n\u{1}\u{e9}", Document::Null),
            ("list", Document::List(vec![u64::MAX.into(), Document::Bool(true)])),
            ("tuple", Document::Tuple(vec!["a".into(), Document::List(vec![])])),
        ])
    }

    #[test]
    fn json_escapes_what_it_must() {
        let expected = r#"{"text \"\\\n\u0001é":null,"list":[18446744073709551615,true],"tuple":["a",[]]}"#;
        assert_eq!(document().to_json(), expected);
    }

    #[test]
    fn pickle_is_read_by_python() {
        use std::io::Write;
        use std::process::{Command, Stdio};

        let script = "import pickle, sys; print(ascii(pickle.load(sys.stdin.buffer)))";
        let mut python = Command::new("python3");
        let python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        // Python may not be installed.
        let Ok(mut python) = python else { return };
        python.stdin.take().unwrap().write_all(&document().to_pickle()).unwrap();
        let printed = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
        let expected =
            r#"{'text "\\\n\x01\xe9': None, 'list': [18446744073709551615, True], 'tuple': ('a', [])}"#;
        assert_eq!(printed.trim(), expected);
    }
}
