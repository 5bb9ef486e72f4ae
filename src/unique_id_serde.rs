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
