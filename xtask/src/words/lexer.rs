//! Lines of Rust and C sources, with code and comments apart.

/// One line of a source file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The line without comments and without the contents of literals.
    pub(super) code: String,
    pub(super) comment: String,
    /// The form of the doc comment that the line's comment belongs to.
    pub(super) doc: Option<Doc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doc {
    /// `///`
    Outer,
    /// `//!`
    Inner,
    /// A line of `/** */` or `/*! */`; the number tells one comment from the next.
    Block(usize),
}

/// Splits a source into its lines.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut lexer = Lexer { rest: text, previous: '\n', lines: vec![Line::default()] };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.lines
}

struct Lexer<'a> {
    rest: &'a str,
    /// The last character of code.
    previous: char,
    lines: Vec<Line>,
}

impl<'a> Lexer<'a> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if let Some(length) = self.literal() {
            self.previous = '"';
            let newlines = self.take(length).matches('\n').count();
            self.code('"');
            self.lines.extend(vec![Line::default(); newlines]);
        } else if let Some(character) = self.rest.chars().next() {
            self.take(character.len_utf8());
            self.previous = character;
            if character == '\n' {
                self.lines.push(Line::default());
            } else {
                self.code(character);
            }
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn code(&mut self, character: char) {
        self.line().code.push(character);
    }

    fn line(&mut self) -> &mut Line {
        if self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let comment = self.take(end);
        let (doc, text) = if let Some(text) = comment.strip_prefix("//!") {
            (Some(Doc::Inner), text)
        } else if let Some(text) = comment.strip_prefix("///").filter(|text| !text.starts_with('/')) {
            (Some(Doc::Outer), text)
        } else {
            (None, &comment[2..])
        };
        let line = self.line();
        line.comment.push_str(text);
        line.doc = doc;
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (0_usize, 0);
        loop {
            let rest = &self.rest[end..];
            if rest.starts_with("/*") {
                (depth, end) = (depth + 1, end + 2);
            } else if rest.starts_with("*/") {
                (depth, end) = (depth - 1, end + 2);
            } else if let Some(character) = rest.chars().next() {
                end += character.len_utf8();
            }
            if depth == 0 || end == self.rest.len() {
                break;
            }
        }
        let comment = self.take(end);
        let is_doc = (comment.starts_with("/**") && !comment.starts_with("/***") && comment != "/**/")
            || comment.starts_with("/*!");
        let doc = is_doc.then_some(Doc::Block(self.lines.len()));
        let text = if is_doc { &comment[3..] } else { &comment[2..] };
        for (index, text) in text.trim_end_matches("*/").split('\n').enumerate() {
            if index > 0 {
                self.lines.push(Line::default());
            }
            let line = self.line();
            line.comment.push_str(text.trim_start().trim_start_matches('*'));
            line.doc = doc;
        }
    }

    /// The length of the string or character literal that begins here.
    fn literal(&self) -> Option<usize> {
        let rest = self.rest;
        if rest.starts_with('"') {
            return Some(quoted(rest, '"'));
        }
        if let Some(inside) = rest.strip_prefix('\'') {
            let mut characters = inside.chars();
            let is_character = characters.next() == Some('\\') || characters.next() == Some('\'');
            // Otherwise it is a lifetime.
            return is_character.then(|| quoted(rest, '\''));
        }
        if self.previous.is_alphanumeric() || self.previous == '_' {
            return None;
        }
        let prefix = ["r", "br", "cr"].into_iter().find(|prefix| rest.starts_with(prefix))?;
        let hashes = rest[prefix.len()..].len() - rest[prefix.len()..].trim_start_matches('#').len();
        let start = prefix.len() + hashes;
        rest[start..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = rest[start + 1..].find(&end).map(|at| start + 1 + at + end.len());
        Some(length.unwrap_or(rest.len()))
    }
}

/// The length of a literal that ends at a `quote` without a backslash before it.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if character == '\\' {
            is_escaped = true;
        } else if character == quote {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_excludes_comments_and_literals() {
        let text = "let a = \"// no comment\"; // one\nlet b: &'a str = r#\"two \" three\"#;\nlet c = '\"'; /* four */ d";
        let lines = lines(text);
        let codes: Vec<&str> = lines.iter().map(|line| &*line.code).collect();
        assert_eq!(codes, ["let a = \"; ", "let b: &'a str = \";", "let c = \";  d"]);
        let comments: Vec<&str> = lines.iter().map(|line| line.comment.trim()).collect();
        assert_eq!(comments, ["one", "", "four"]);
    }

    #[test]
    fn literals_of_several_lines_keep_the_numbers_of_lines() {
        let lines = lines("let a = \"\n\\\"\n\";\n/* b\n * c */\nd");
        let codes: Vec<&str> = lines.iter().map(|line| &*line.code).collect();
        assert_eq!(codes, ["let a = \"", "", ";", "", "", "d"]);
    }

    #[test]
    fn doc_comments_are_known_by_their_form() {
        let lines = lines("//! a\n/// b\n// c\n//// d\n/** e\n * f\n */\n/* g */");
        let docs: Vec<Option<Doc>> = lines.iter().map(|line| line.doc).collect();
        let block = Some(Doc::Block(5));
        assert_eq!(docs, [Some(Doc::Inner), Some(Doc::Outer), None, None, block, block, block, None]);
        assert_eq!(lines[5].comment, " f");
    }
}
