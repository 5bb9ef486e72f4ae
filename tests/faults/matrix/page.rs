use std::fmt::Write;
use std::{env, fs};

use super::cell::{Outcome, Row};
use super::fault::Fault;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/generated/faults.md");

const START: &str = "\
# Faults

Written by `LIBNCCL_TEST_FAULTS=write cargo test --test faults matrix -- --ignored`, which takes a minute. Of three ranks, rank 2 has
a fault instead of a call; a cell is what the others get. [What is done, and what the cells mean](../hangs.md#faults).
";

/// Compares the page with what happens, or writes it.
pub(crate) fn check(table: &[Row]) {
    let new = format!("{START}{}", rows(table));
    if env::var("LIBNCCL_TEST_FAULTS").as_deref() == Ok("write") {
        fs::write(PAGE, new).unwrap();
    } else {
        let page = fs::read_to_string(PAGE).unwrap();
        assert!(new == page, "docs/generated/faults.md is not what happens:\n{}", rows(table));
    }
}

fn rows(table: &[Row]) -> String {
    let mut rows = String::from("\n| call |");
    for fault in Fault::ALL {
        let _ = write!(rows, " {fault} |");
    }
    rows += "\n|---|";
    rows += &"---|".repeat(Fault::ALL.len());
    for Row { call, outcomes } in table {
        let _ = write!(rows, "\n| `{call}` |");
        for outcome in outcomes {
            let cell = match outcome {
                None => "",
                Some(Outcome::Succeeds) => "succeeds",
                Some(Outcome::Error) => "error",
                Some(Outcome::Timeout) => "timeout",
            };
            let _ = write!(rows, " {cell} |");
        }
    }
    rows + "\n"
}
