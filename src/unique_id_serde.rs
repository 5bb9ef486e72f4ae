//! A unique id in the formats of the crate serde: its text.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::unique_id::UniqueId;

impl Serialize for UniqueId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UniqueId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = UniqueId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a unique id of {} hexadecimal digits", 2 * UniqueId::BYTES)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<UniqueId, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use serde::de::value::{Error, StrDeserializer, U8Deserializer};
    use serde::de::{Deserialize, IntoDeserializer};
    use serde::ser::Serialize;

    use crate::unique_id::UniqueId;

    /// Writes a value as serde does, for which a formatter is a serializer of texts.
    struct Serialized<T>(T);

    impl<T: Serialize> fmt::Display for Serialized<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }

    #[test]
    fn serialized_id_is_its_text_and_is_read_back() {
        let id = UniqueId::from_bytes(std::array::from_fn(|index| index as u8 + 100));
        let text = Serialized(id).to_string();
        assert_eq!(text, id.to_string());
        let deserializer: StrDeserializer<'_, Error> = text.as_str().into_deserializer();
        assert_eq!(UniqueId::deserialize(deserializer), Ok(id));
    }

    #[test]
    fn other_text_or_type_is_an_error_that_names_the_expected_form() {
        let short: StrDeserializer<'_, Error> = "ab".into_deserializer();
        let error = UniqueId::deserialize(short).unwrap_err();
        assert_eq!(error.to_string(), "a unique id has 128 bytes; 1 were given");
        let number: U8Deserializer<Error> = 7_u8.into_deserializer();
        let error = UniqueId::deserialize(number).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid type: integer `7`, expected a unique id of 256 hexadecimal digits"
        );
    }
}
