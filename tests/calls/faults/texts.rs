//! NCCL's error texts, which may be null or any bytes.

use libnccl::Error;
use libnccl_test_support::fake_nccl::ErrorText;

use super::fault::Fault;
use super::run::{Timing, baseline, run};
use crate::methods;

const TEXTS: [(ErrorText, &str); 5] = [
    (ErrorText::Null, ""),
    (ErrorText::Empty, ""),
    (ErrorText::NotUtf8, "\u{fffd}\u{fffd} broken \u{fffd}"),
    (ErrorText::Long, "xxx"),
    (ErrorText::Changing, "text 0"),
];

/// Every call fails with one of the texts, the next call with the next.
#[test]
fn error_text_of_any_bytes_is_copied() {
    let (mut texts, mut checked) = (TEXTS.into_iter().cycle(), [0; TEXTS.len()]);
    for case in methods::all() {
        for (call, (text, expected)) in
            baseline(&case, Timing::Timeout).numbered_calls().into_iter().zip(&mut texts)
        {
            let fault = Fault { code: 3, text, ..Fault::of(call) };
            let Err(Error::Nccl { message, detail, .. }) = run(&case, Timing::Timeout, Some(fault)).result
            else {
                continue; // Checked with the codes.
            };
            for copied in [&message, &detail] {
                assert!(copied.starts_with(expected), "{text:?}: {copied:.200}");
                assert_eq!(copied.is_empty(), expected.is_empty(), "{text:?}: {copied:.200}");
            }
            let differs = [ErrorText::Changing, ErrorText::Long].contains(&text);
            assert_eq!(differs, message != detail, "{text:?}");
            assert_eq!(text == ErrorText::Long, message.len() == ErrorText::LONG, "{text:?}");
            // NCCL's buffer for the last error has no more.
            assert!(detail.len() <= 1024, "{text:?}");
            checked[TEXTS.iter().position(|known| known.0 == text).unwrap()] += 1;
        }
    }
    assert!(checked.iter().all(|count| *count > 20), "{checked:?} errors have these texts");
}
