//! The number of lines of unsafe code of each program, before and after.
//!
//! A line counts if the keyword `unsafe` is in it, or code of an `unsafe` block; comments and empty lines do not count.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

const PROGRAMS: [&str; 4] = ["server", "custom_op", "bootstrap", "exchange"];

/// The page with the figures.
const PAGE: &str = include_str!("../../../docs/migration.md");

/// Returns the numbers of the lines that count.
fn unsafe_lines(source: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    add_lines(source.parse().expect("tokens of Rust"), false, &mut lines);
    lines
}

fn add_lines(tokens: TokenStream, in_block: bool, lines: &mut BTreeSet<usize>) {
    let mut is_after_keyword = false;
    let add = |span: Span, lines: &mut BTreeSet<usize>| lines.extend(span.start().line..=span.end().line);
    for token in tokens {
        let is_keyword = matches!(&token, TokenTree::Ident(ident) if ident == "unsafe");
        match token {
            TokenTree::Group(group) => {
                let is_block = in_block || is_after_keyword && group.delimiter() == Delimiter::Brace;
                if is_block {
                    add(group.span_open(), lines);
                    add(group.span_close(), lines);
                }
                add_lines(group.stream(), is_block, lines);
            }
            token if in_block || is_keyword => add(token.span(), lines),
            _ => {}
        }
        is_after_keyword = is_keyword;
    }
}

fn count(program: &str, form: &str) -> usize {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/bin/{program}/{form}.rs"));
    let source = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    unsafe_lines(&source).len()
}

#[test]
fn lines_of_the_keyword_and_of_blocks_count() {
    let source = "
        // An unsafe comment.
        fn safe() { \"unsafe\" }
        unsafe impl Send for Handle {}
        unsafe fn declared() {
            safe()
        }
        fn caller() {
            unsafe { one_line() };
            let safe = unsafe {

                // Of the lines inside, this and the empty one do not count.
                several(
                    (lines),
                )
            };
        }
    ";
    assert_eq!(unsafe_lines(source), BTreeSet::from([4, 5, 9, 10, 13, 14, 15, 16]));
}

#[test]
fn programs_lose_at_least_nine_of_ten_unsafe_lines() {
    let mut table = "| program | before | after |\n|---|---|---|\n".to_owned();
    let mut totals = [0, 0];
    for program in PROGRAMS {
        let counts = ["before", "after"].map(|form| count(program, form));
        table += &format!("| `{program}` | {} | {} |\n", counts[0], counts[1]);
        totals = [totals[0] + counts[0], totals[1] + counts[1]];
    }
    table += &format!("| together | {} | {} |\n", totals[0], totals[1]);
    println!("{table}");
    assert!(totals[1] * 10 <= totals[0], "{table}");
    assert!(PAGE.contains(&table), "docs/migration.md does not have the figures:\n{table}");
}
