use std::fmt::Write;
use std::{env, fs};

use crate::cell::{Outcome, Row};
use crate::fault::Fault;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/faults.md");

const START: &str =
    "<!-- The table is written by: LIBNCCL_FAULTS=write cargo test --test fault_matrix -- --ignored -->\n";

/// Compares the table with the page, or writes it.
pub(crate) fn check(table: &[Row]) {
    let page = fs::read_to_string(PAGE).unwrap();
    let (text, _) = page.split_once(START).expect("the page has the line before the table");
    let new = format!("{text}{START}{}", rows(table));
    if env::var("LIBNCCL_FAULTS").as_deref() == Ok("write") {
        fs::write(PAGE, new).unwrap();
    } else {
        assert!(new == page, "docs/faults.md is not what happens:\n{}", rows(table));
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
