//! NCCL's words, which may be any bytes or none.

use libnccl::Error;

use crate::fault::{Fault, Text};
use crate::methods;
use crate::run::{Timing, baseline, run};

const TEXTS: [(Text, &str); 5] = [
    (Text::Null, ""),
    (Text::Empty, ""),
    (Text::NotUtf8, "\u{fffd}\u{fffd} broken \u{fffd}"),
    (Text::Megabyte, "xxx"),
    (Text::Changing, "text 0"),
];

#[test]
fn every_text_of_every_error() {
    for method in methods::all() {
        for call in baseline(&method, Timing::Timeout).own_calls(&method) {
            for (text, expected) in TEXTS {
                let fault = Fault { code: 3, text, ..Fault::of(call) };
                let Err(Error::Nccl { message, detail, .. }) =
                    run(&method, Timing::Timeout, Some(fault)).result
                else {
                    continue; // Checked with the codes.
                };
                for words in [&message, &detail] {
                    assert!(words.starts_with(expected) && words.is_empty() == expected.is_empty());
                }
                assert_eq!(text == Text::Changing, message != detail, "{text:?}");
                assert_eq!(text == Text::Megabyte, message.len() == 1 << 20, "{text:?}");
            }
        }
    }
}
