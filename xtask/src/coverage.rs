//! `docs/generated/coverage.md`: the methods that call each C function, and the tests that name it. All of it is derived
//! from the sources, except for the reasons why a function has no method.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::checkout::{self, rust_files};

const PAGE: &str = "docs/generated/coverage.md";

/// The functions without a method of their own, with the reason.
const REASONS: &[(&str, &str)] = &[
    ("ncclBcast", "the older form of `ncclBroadcast` in place, which `broadcast_in_place` calls"),
    ("ncclGetErrorString", "part of every `Error::Nccl`"),
    ("ncclGetLastError", "part of every `Error::Nccl`"),
    ("ncclRedOpDestroy", "the drop of `PreMulSum`"),
];

/// The coverage of a C function.
#[derive(Debug, Default)]
struct Function {
    since: String,
    methods: Vec<String>,
    is_called: bool,
    tests: Vec<String>,
}

/// Writes the page, or with `check` fails if the committed page differs.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    checkout::write_or_check(PAGE, &page(&functions(root)?)?, check, "coverage")
}

fn functions(root: &Path) -> Result<BTreeMap<String, Function>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let since = read(&root.join("src/sys/generated/since.rs"))?;
    let signatures = read(&root.join("src/sys/generated/functions.rs"))?;
    let names = signatures.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.split('(').next());
    let mut functions: BTreeMap<String, Function> = names
        .map(|name| {
            let code = since
                .lines()
                .find_map(|line| line.trim().strip_prefix(&format!("(\"{name}\", "))?.split(')').next());
            let code: u32 = code.and_then(|code| code.parse().ok()).unwrap_or_default();
            let since = format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
            (name.to_string(), Function { since, ..Function::default() })
        })
        .collect();

    let sources = rust_files(&root.join("src"))?;
    for path in sources.iter().filter(|path| !path.starts_with(root.join("src/sys"))) {
        let text = read(path)?;
        for (alias, method) in methods(&text) {
            if let Some(function) = functions.get_mut(&alias) {
                function.methods.push(method);
            }
        }
        let code: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//") && !line.starts_with("#["))
            .collect();
        for (name, function) in &mut functions {
            function.is_called |= code.iter().any(|line| words(&unquoted(line)).any(|word| word == name));
        }
    }

    // A test of a C function names it, in the expected call or the expected error. The fake NCCL names all of them, and tests of
    // the build script those of their headers.
    let excluded = ["tests/support", "tests/build_script"].map(|directory| root.join(directory));
    let mut tests = rust_files(&root.join("tests"))?;
    tests.retain(|path| !excluded.iter().any(|directory| path.starts_with(directory)));
    for path in &tests {
        let text = read(path)?;
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let named: BTreeSet<&str> = words(&text).collect();
        for (_, function) in functions.iter_mut().filter(|(name, _)| named.contains(name.as_str())) {
            function.tests.push(file.clone());
        }
    }
    Ok(functions)
}

/// Returns `(C function, Type::method)` for every method with C functions as its documentation aliases.
fn methods(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut aliases: Vec<String> = Vec::new();
    let mut owner = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(alias) = line.strip_prefix("#[doc(alias = \"").and_then(|rest| rest.split('"').next()) {
            aliases.push(alias.to_string());
        } else if line.starts_with("//") || line.starts_with("#[") || line.is_empty() {
        } else if line.starts_with("impl") {
            let name = line.split(" for ").last().unwrap_or(line);
            let name = name.trim_start_matches("impl").trim_start();
            let name = if name.starts_with('<') {
                name.split_once("> ").map_or(name, |(_, rest)| rest)
            } else {
                name
            };
            owner = words(name).next().unwrap_or_default().to_string();
            aliases.clear();
        } else {
            let declared = line.strip_prefix("pub fn ").or_else(|| line.strip_prefix("pub unsafe fn "));
            if let Some(name) = declared.and_then(|rest| words(rest).next()) {
                found.extend(aliases.iter().map(|alias| (alias.clone(), format!("{owner}::{name}"))));
            }
            aliases.clear();
        }
    }
    found
}

/// Returns a line of code without its string literals, which name functions for errors.
fn unquoted(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn page(functions: &BTreeMap<String, Function>) -> Result<String> {
    let reached = functions.values().filter(|function| function.is_called).count();
    let mut page = format!(
        "# Coverage\n\n\
         Written by `cargo xtask coverage` from the sources; CI checks it. {reached} of the {} functions of `nccl.h` are\n\
         reached by safe methods.\n\n\
         | C function | since | methods | tests that name it |\n|---|---|---|---|\n",
        functions.len()
    );
    for (name, function) in functions {
        let reason = REASONS.iter().find(|(reasoned, _)| reasoned == name).map(|(_, reason)| *reason);
        let methods = match (reason, function.methods.is_empty()) {
            (Some(reason), _) => reason.to_string(),
            (None, true) if function.is_called => {
                bail!("{name} is called, but no public method has it as its documentation alias")
            }
            (None, true) => bail!("no method calls {name}, and {} gives no reason", file!()),
            (None, false) => {
                function.methods.iter().map(|method| format!("`{method}`")).collect::<Vec<_>>().join(", ")
            }
        };
        writeln!(page, "| `{name}` | {} | {methods} | {} |", function.since, function.tests.join(", "))?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::methods;

    #[test]
    fn methods_have_the_aliases_before_them() {
        let text = "
            #[doc(alias = \"ncclComm_t\")]
            pub struct Communicator;
            impl<'c, T: Element> PreMulSum<'c, T> {
                /// Text.
                #[doc(alias = \"ncclA\")]
                #[doc(alias = \"ncclB\")]
                #[must_use]
                pub fn one<R>(&self) {}
                pub fn none(&self) {}
            }
            impl Nccl {
                #[doc(alias = \"ncclC\")]
                pub unsafe fn two() {}
            }";
        let pair = |alias: &str, method: &str| (alias.to_string(), method.to_string());
        assert_eq!(
            methods(text),
            [pair("ncclA", "PreMulSum::one"), pair("ncclB", "PreMulSum::one"), pair("ncclC", "Nccl::two"),]
        );
    }
}
