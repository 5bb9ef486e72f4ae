//! The words of the project: private terms, each with the field's term for it, and the first words of doc comments.

mod lexer;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::checkout;
use lexer::{Doc, Line};

/// Private terms; the comments at its top describe the format.
const TERMS: &str = include_str!("words/terms.tsv");

/// Files that name private terms because they define this check, or whose text is not the project's own.
const EXCLUDED: [&str; 6] = [
    "xtask/src/words",
    "Cargo.lock",
    "LICENSE-",
    "crates/cli/LICENSE-",
    "crates/cpu/LICENSE-",
    "src/sys/generated/",
];

/// First words that make a doc comment's first line neither a verb nor a noun phrase.
const OPENINGS: [&str; 21] = [
    "as",
    "how",
    "like",
    "none",
    "same",
    "that",
    "those",
    "what",
    "whatever",
    "when",
    "whenever",
    "where",
    "wherever",
    "whether",
    "which",
    "whichever",
    "who",
    "whoever",
    "whom",
    "whose",
    "why",
];

/// Fails, and lists each finding with its place, if a private term or such a first word occurs in a file of the
/// checkout.
pub(crate) fn check(root: &Path) -> Result<()> {
    let terms = parse(TERMS)?;
    let mut findings = Vec::new();
    let mut files = checkout::files(root)?;
    files.retain(|file| !EXCLUDED.iter().any(|prefix| file.starts_with(prefix)));
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else {
            continue; // Not text.
        };
        findings.extend(find(file, &text, &terms));
    }
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "{} findings in {} files", findings.len(), files.len());
    println!("words: {} files, {} terms", files.len(), terms.len());
    Ok(())
}

/// One way to write a private term.
#[derive(Debug, PartialEq, Eq)]
struct Term {
    form: Form,
    /// Terms are searched only in files that have this word.
    longest_word: String,
    /// Prefixes of the paths that are searched, and those that are not.
    paths: Vec<String>,
    except: Vec<String>,
    instead: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// Words in a row, in any text and as parts of identifiers.
    Words(Vec<String>),
    /// An identifier in Rust code, or in backticks in its comments.
    Name(String),
    /// A keyword and the name of the item that it defines, which may end in `*`.
    Item(String, String),
    /// Literal text.
    Text(String),
}

impl Term {
    fn is_searched_in(&self, path: &str) -> bool {
        let covers = |prefixes: &[String]| prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()));
        (self.paths.is_empty() || covers(&self.paths)) && !covers(&self.except)
    }

    fn shown(&self) -> String {
        match &self.form {
            Form::Words(words) => words.join(" "),
            Form::Name(text) | Form::Text(text) => text.clone(),
            Form::Item(keyword, name) => format!("{keyword} {name}"),
        }
    }
}

/// Parses the list of terms.
fn parse(list: &str) -> Result<Vec<Term>> {
    let mut terms = Vec::new();
    for (number, line) in (1..).zip(list.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, written, places, instead] = fields[..] else {
            bail!("terms.tsv:{number}: {} fields instead of four", fields.len());
        };
        let (mut paths, mut except) = (Vec::new(), Vec::new());
        for place in places.split(',').filter(|place| *place != "*") {
            match place.strip_prefix('!') {
                Some(place) => except.push(place.to_string()),
                None => paths.push(place.to_string()),
            }
        }
        for one in written.split('|') {
            let form = match kind {
                "word" => Form::Words(one.split(' ').map(String::from).collect()),
                "name" => Form::Name(one.to_string()),
                "text" => Form::Text(one.to_string()),
                "item" => match one.split_once(' ') {
                    Some((keyword, name)) => Form::Item(keyword.to_string(), name.to_string()),
                    None => bail!("terms.tsv:{number}: no keyword in {one:?}"),
                },
                _ => bail!("terms.tsv:{number}: unknown kind {kind:?}"),
            };
            // The keyword of an item is in every file.
            let searched =
                if kind == "item" { one.split_once(' ').map_or(one, |(_, name)| name) } else { one };
            let longest = words(0, searched).into_iter().max_by_key(|word| word.text.len());
            terms.push(Term {
                form,
                longest_word: longest.with_context(|| format!("terms.tsv:{number}: no word"))?.text,
                paths: paths.clone(),
                except: except.clone(),
                instead: instead.to_string(),
            });
        }
    }
    Ok(terms)
}

/// Returns the findings in one file, by line.
fn find(path: &str, text: &str, terms: &[Term]) -> Vec<String> {
    // Line 0 is the path.
    let words: Vec<Word> = words(0, path).into_iter().chain(words(1, text)).collect();
    let vocabulary: HashSet<&str> = words.iter().map(|word| &*word.text).collect();
    let terms: Vec<&Term> = terms
        .iter()
        .filter(|term| vocabulary.contains(&*term.longest_word) && term.is_searched_in(path))
        .collect();
    let is_rust = path.ends_with(".rs");
    let mut found: Vec<(usize, String)> = Vec::new();
    let private = |term: &Term| format!("private term \"{}\"; instead: {}", term.shown(), term.instead);

    for (at, word) in words.iter().enumerate() {
        for term in &terms {
            if let Form::Words(sought) = &term.form
                && sought[0] == word.text
                && words[at..].len() >= sought.len()
                && words[at + 1..]
                    .iter()
                    .zip(&sought[1..])
                    .all(|(word, sought)| word.follows_previous && word.text == *sought)
            {
                found.push((word.line, private(term)));
            }
        }
    }
    for (line, text) in (0..).zip([path].into_iter().chain(text.lines())) {
        for term in &terms {
            if let Form::Text(sought) = &term.form
                && contains(text, sought)
            {
                found.push((line, private(term)));
            }
        }
    }
    if is_rust || path.ends_with(".h") {
        let lines = lexer::lines(text);
        if is_rust {
            for (number, line) in (1..).zip(&lines) {
                for term in terms.iter().filter(|term| is_in(&term.form, line)) {
                    found.push((number, private(term)));
                }
            }
        }
        found.extend(openings(&lines));
    }
    found.sort();
    found.dedup();
    let mut findings = Vec::new();
    for (line, what) in found {
        findings.push(if line == 0 { format!("{path}: {what}") } else { format!("{path}:{line}: {what}") });
    }
    findings
}

struct Word {
    line: usize,
    /// In lower case.
    text: String,
    /// Nothing but spaces, underscores and the marks of comments is between it and the word before.
    follows_previous: bool,
}

/// Splits a text, which begins at line `line`, into the words of its sentences and identifiers.
fn words(mut line: usize, text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut follows_previous = false;
    let mut is_inside = false;
    let mut characters = text.chars().peekable();
    let mut previous = ' ';
    while let Some(character) = characters.next() {
        if character.is_ascii_alphabetic() {
            let next = characters.peek().copied().unwrap_or(' ');
            let is_camel = character.is_ascii_uppercase()
                && (previous.is_ascii_lowercase()
                    || (previous.is_ascii_uppercase() && next.is_ascii_lowercase()));
            if !is_inside || is_camel {
                words.push(Word { line, text: String::new(), follows_previous });
            }
            if let Some(word) = words.last_mut() {
                word.text.push(character.to_ascii_lowercase());
            }
            (is_inside, follows_previous) = (true, true);
        } else {
            is_inside = false;
            line += usize::from(character == '\n');
            follows_previous &= character.is_whitespace() || "_/!*#".contains(character);
        }
        previous = character;
    }
    words
}

fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns `true` if `text` contains `sought`, and not as part of a longer identifier.
fn contains(text: &str, sought: &str) -> bool {
    let is_cut = |outside: Option<char>, inside: Option<char>| {
        outside.is_some_and(is_identifier) && inside.is_some_and(is_identifier)
    };
    text.match_indices(sought).any(|(at, _)| {
        !is_cut(text[..at].chars().next_back(), sought.chars().next())
            && !is_cut(text[at + sought.len()..].chars().next(), sought.chars().next_back())
    })
}

/// Returns `true` if a line of Rust has a name or defines an item.
fn is_in(form: &Form, line: &Line) -> bool {
    let identifiers =
        |text: &str| text.split(|c| !is_identifier(c)).map(String::from).collect::<Vec<String>>();
    match form {
        Form::Words(_) | Form::Text(_) => false,
        Form::Name(name) => {
            let quoted: String = line.comment.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
            contains(&line.code, name) || contains(&quoted, name)
        }
        Form::Item(keyword, name) => {
            line.code.contains(keyword.as_str())
                && identifiers(&line.code).windows(2).any(|pair| {
                    pair[0] == *keyword
                        && match name.strip_suffix('*') {
                            Some(start) => pair[1].starts_with(start),
                            None => pair[1] == *name,
                        }
                })
        }
    }
}

/// Returns the first lines of doc comments that begin with one of [`OPENINGS`].
fn openings(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut before: Option<Doc> = None;
    let mut is_first = false;
    for (number, line) in (1..).zip(lines) {
        is_first |= line.doc.is_some() && line.doc != before;
        before = line.doc;
        let text = line.comment.trim();
        // A block comment's text may begin on its second line.
        if !is_first || line.doc.is_none() || text.is_empty() {
            continue;
        }
        is_first = false;
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        let first = words.next().unwrap_or_default().to_lowercase();
        let opening = if first == "the" && words.next() == Some("same") { "the same".into() } else { first };
        if opening == "the same" || OPENINGS.contains(&opening.as_str()) {
            found.push((
                number,
                format!("a doc comment begins with \"{opening}\"; begin with a verb (\"Returns\") or a noun"),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(path: &str, text: &str, list: &str) -> Vec<String> {
        find(path, text, &parse(list).unwrap())
    }

    fn lines_of(findings: &[String]) -> Vec<&str> {
        findings.iter().map(|finding| finding.split(": ").next().unwrap_or_default()).collect()
    }

    #[test]
    fn the_committed_list_is_valid() {
        assert!(parse(TERMS).unwrap().len() > 100);
    }

    #[test]
    fn a_malformed_list_is_an_error() {
        for list in ["word\tkin\t*", "words\tkin\t*\tparent", "item\tsay\t*\tpublish"] {
            parse(list).unwrap_err();
        }
    }

    #[test]
    fn words_are_found_in_prose_and_in_identifiers() {
        let text =
            "// A stranger comes.\nfn strangers_wait() {}\nstruct StrangerList;\nlet estranger = STRANGERS;";
        let found = find_in("a.rs", text, "word\tstranger|strangers\t*\tunauthenticated peer");
        assert_eq!(lines_of(&found), ["a.rs:1", "a.rs:2", "a.rs:3", "a.rs:4"]);
        assert_eq!(found[0], "a.rs:1: private term \"stranger\"; instead: unauthenticated peer");
    }

    #[test]
    fn words_in_a_row_are_found_across_lines_of_a_comment() {
        let list = "word\tbad news\t*\tabort flag";
        assert_eq!(
            lines_of(&find_in("a.rs", "/// The bad\n    /// news.\nfn is_bad_news()", list)),
            ["a.rs:1", "a.rs:3"]
        );
        assert!(find_in("a.rs", "// It is bad. News follow.", list).is_empty());
    }

    #[test]
    fn names_are_whole_identifiers_of_code() {
        let list = "name\tWorld\t*\tSharedState";
        let text = "struct World;\nMPI_COMM_WORLD\n\"World\" // World\n// a [`World`]\nWorldSize";
        assert_eq!(lines_of(&find_in("a.rs", text, list)), ["a.rs:1", "a.rs:4"]);
        assert!(find_in("a.md", text, list).is_empty());
    }

    #[test]
    fn items_are_definitions() {
        let list = "item\tfn say|mod world|fn what_*\t*\tanother";
        let text =
            "pub(crate) fn say(x: u8) {}\nmod world;\nlet say = 1;\nfn say_all() {}\nfn what_is_it() {}";
        assert_eq!(lines_of(&find_in("a.rs", text, list)), ["a.rs:1", "a.rs:2", "a.rs:5"]);
    }

    #[test]
    fn literal_text_is_found_in_files_and_in_their_paths() {
        let list = "text\t.ci/floor|ways.rs\t*\tanother";
        assert_eq!(
            find_in("tests/ways.rs", "run .ci/floor, not .ci/floors or always.rs", list),
            [
                "tests/ways.rs: private term \"ways.rs\"; instead: another",
                "tests/ways.rs:1: private term \".ci/floor\"; instead: another",
            ]
        );
    }

    #[test]
    fn a_term_is_searched_where_its_list_says() {
        let list = "word\tseat\tcrates/,!crates/cli/\tRankContext";
        let count = |path| find_in(path, "seat", list).len();
        assert_eq!([count("crates/cpu/a.md"), count("crates/cli/a.md"), count("src/a.rs")], [1, 0, 0]);
    }

    #[test]
    fn the_first_line_of_a_doc_comment_is_checked() {
        let text = "//! What a module is.\n\
                    //! What follows is free.\n\
                    \n\
                    /// Whole pages.\n\
                    /// Whether this counts: no.\n\
                    struct A;\n\
                    /// The same again.\n\
                    // What a plain comment says is free.\n\
                    /// `None` is code.\n\
                    /** Why? */\n\
                    /**\n * Who?\n */\n\
                    const TEXT: &str = \"/// What\";\n";
        let found = find_in("a.rs", text, "");
        assert_eq!(lines_of(&found), ["a.rs:1", "a.rs:7", "a.rs:10", "a.rs:12"]);
        assert!(find_in("a.md", text, "").is_empty());
    }
}
