//! The imports between the files of each crate: they form no circle, and no production code imports tests.

mod graph;
mod modules;
mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::checkout;
use modules::Crate;

/// Fails, and lists the imports that are to blame, if a crate of the checkout has a circle of files or has production
/// code that imports tests.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut problems = Vec::new();
    for crate_root in crate_roots(root)? {
        let read = |path: &Path| fs::read_to_string(root.join(path)).ok();
        let report = examine(&crate_root, &read)?;
        if report.files > 1 {
            println!("{}: {} files, {} imports", crate_root.display(), report.files, report.imports);
        }
        problems.extend(report.problems);
    }
    for problem in &problems {
        println!("\n{problem}");
    }
    ensure!(problems.is_empty(), "{} problems", problems.len());
    Ok(())
}

/// Returns the root file of each library, program, test, benchmark, example and build script in the checkout.
fn crate_roots(root: &Path) -> Result<Vec<PathBuf>> {
    let files = checkout::files(root)?;
    let files: Vec<&Path> = files.iter().map(Path::new).collect();
    let mut roots: Vec<&Path> = Vec::new();
    for package in files.iter().filter(|file| file.ends_with("Cargo.toml")).filter_map(|file| file.parent()) {
        roots.extend(files.iter().copied().filter(|file| {
            let Ok(inside) = file.strip_prefix(package) else { return false };
            let parts: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
            match parts[..] {
                ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
                ["src", "bin", name] | ["tests" | "benches" | "examples", name] => name.ends_with(".rs"),
                ["src", "bin", _, "main.rs"] | ["tests" | "benches" | "examples", _, "main.rs"] => true,
                _ => false,
            }
        }));
    }
    Ok(roots.into_iter().map(Path::to_path_buf).collect())
}

/// The result for one crate.
#[derive(Debug)]
struct Report {
    files: usize,
    imports: usize,
    problems: Vec<String>,
}

/// Examines the crate with this root file; `read` returns a file's text.
fn examine(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Report> {
    let tree = Crate::parse(root, read)?;
    let mut problems = Vec::new();
    // By importing and imported file: the first line and path.
    let mut imports: BTreeMap<(&Path, &Path), (usize, String)> = BTreeMap::new();
    for mention in paths::mentions(&tree) {
        let Some(module) = tree.resolve(mention.module, &mention.path) else { continue };
        let from = &*tree.modules[mention.module].file;
        let to = &tree.modules[module];
        if from == to.file || mention.is_test && !to.is_test {
            continue;
        }
        let path = mention.path.join("::");
        if to.has_tests {
            let (from, to) = (from.display(), to.file.display());
            problems
                .push(format!("{from}:{}: production code imports {path} from tests in {to}", mention.line));
            continue;
        }
        imports.entry((from, &*to.file)).or_insert((mention.line, path));
    }
    for circle in graph::circles(imports.keys().copied()) {
        let mut text = format!("{}: a circle of {} files:", root.display(), circle.len());
        for ((from, to), (line, path)) in &imports {
            if circle.contains(from) && circle.contains(to) {
                text += &format!("\n  {}:{line} -> {} ({path})", from.display(), to.display());
            }
        }
        problems.push(text);
    }
    let files: BTreeSet<&Path> = tree.modules.iter().map(|module| &*module.file).collect();
    Ok(Report { files: files.len(), imports: imports.len(), problems })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examine(files: &[(&str, &str)]) -> Report {
        let read = |path: &Path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_string())
        };
        super::examine(Path::new(files[0].0), &read).unwrap()
    }

    fn imports(files: &[(&str, &str)]) -> usize {
        let report = examine(files);
        assert_eq!(report.problems, [""; 0]);
        report.imports
    }

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let report = examine(&[
            ("src/lib.rs", "mod a;\nmod b;\nuse a::A;\nfn f() {}"),
            ("src/a.rs", "use crate::b::B;\npub(crate) struct A;"),
            ("src/b.rs", "pub(crate) struct B;\nfn f(_: super::a::A) {}"),
        ]);
        assert_eq!((report.files, report.imports), (3, 3));
        assert_eq!(
            report.problems,
            ["src/lib.rs: a circle of 2 files:\n  \
              src/a.rs:1 -> src/b.rs (crate::b::B)\n  \
              src/b.rs:2 -> src/a.rs (super::a::A)"]
        );
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_item() {
        // Nothing here imports a/mod.rs, which imports b.rs only because it uses B itself.
        let files = [
            ("src/lib.rs", "mod a;\nmod c;\npub use a::B;"),
            ("src/a/mod.rs", "mod b;\npub use self::b::B;"),
            ("src/a/b.rs", "use super::super::c::C;\npub struct B;"),
            ("src/c.rs", "pub struct C;"),
        ];
        assert_eq!(imports(&files), 1);
        let mut circle = files;
        circle[3].1 = "pub struct C;\nuse crate::{self as root, B};\nfn f() -> root::B {}";
        assert!(examine(&circle).problems[0].contains("src/c.rs:2 -> src/a/b.rs (crate::B)"));
    }

    #[test]
    fn a_parent_that_uses_what_it_re_exports_imports_it() {
        let report = examine(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b;\npub use b::B;\npub struct A;\nfn f() { B::new() }"),
            ("src/a/b.rs", "use super::A;\npub struct B;"),
        ]);
        assert!(report.problems[0].contains("src/a.rs:4 -> src/a/b.rs (B::new)"), "{report:?}");
    }

    #[test]
    fn globs_modules_and_renames_are_followed() {
        assert_eq!(
            imports(&[
                ("src/main.rs", "mod a;\nmod b;\nmod c;"),
                ("src/a.rs", "use crate::b::*;\nfn f() { B; }"),
                ("src/b.rs", "pub use crate::c::{C as B, one};"),
                ("src/c.rs", "pub struct C;\npub fn one() {}"),
            ]),
            2 // a.rs imports the glob's module and C.
        );
    }

    #[test]
    fn macros_import_what_their_bodies_name() {
        let report = examine(&[
            ("src/lib.rs", "#[macro_use]\nmod a;\nmod b;"),
            (
                "src/a.rs",
                "macro_rules! call { ($x:expr) => { $crate::b::helper($x) } }\npub(crate) use call;",
            ),
            ("src/b.rs", "use crate::a::call;\npub fn helper() { println!(\"{}\", call!(1)); }"),
        ]);
        assert_eq!(report.problems.len(), 1, "{report:?}");
        let files = [
            ("tests/t.rs", "mod a;\nmod b;"),
            (
                "tests/a.rs",
                "#[macro_export]\nmacro_rules! call { () => {} }\nstruct_of! { pub(crate) x: u8 }",
            ),
            ("tests/b.rs", "use crate::call;"),
        ];
        assert_eq!(imports(&files), 1);
    }

    #[test]
    fn test_code_may_import_anything() {
        assert_eq!(
            imports(&[
                ("src/lib.rs", "mod a;\nmod b;"),
                ("src/a.rs", "use crate::b::B;\npub struct A;"),
                (
                    "src/b.rs",
                    "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; #[test] fn f() {} }\n\
                     #[cfg(test)]\nfn g() -> crate::a::A {}\nfn h() { #[cfg(all(test, loom))] crate::a::f(); }",
                ),
            ]),
            1
        );
    }

    #[test]
    fn production_code_that_imports_tests_is_a_problem() {
        let report = examine(&[
            (
                "src/lib.rs",
                "mod a;\n#[cfg(all(test, loom))]\nmod models;\n#[cfg(all(test, loom))]\nmod hooks;",
            ),
            ("src/a.rs", "fn f() {\n#[cfg(all(test, loom))]\ncrate::models::read();\n}"),
            ("src/models.rs", "pub fn read() {}\n#[test]\nfn a_model() { crate::hooks::read(); }"),
            ("src/hooks.rs", "pub fn read() {}"),
        ]);
        assert_eq!(
            report.problems,
            ["src/a.rs:3: production code imports crate::models::read from tests in src/models.rs"]
        );
        // Hooks without tests are a file like others.
        let hooks = examine(&[
            ("src/lib.rs", "mod a;\n#[cfg(test)]\nmod hooks;"),
            ("src/a.rs", "fn f() {\n#[cfg(test)]\ncrate::hooks::read();\n}\npub struct A;"),
            ("src/hooks.rs", "pub fn read(_: crate::a::A) {}"),
        ]);
        assert!(hooks.problems[0].contains("a circle of 2 files"), "{hooks:?}");
    }

    #[test]
    fn paths_of_attributes_and_nested_modules_are_found() {
        assert_eq!(
            imports(&[
                (
                    "tests/t.rs",
                    "#[path = \"common/worker.rs\"]\nmod worker;\nmod inline { mod deep; }\nuse worker::run;"
                ),
                ("tests/common/worker.rs", "pub fn run() {}"),
                ("tests/inline/deep.rs", "use super::super::worker;"),
            ]),
            2
        );
    }

    #[test]
    fn a_file_that_is_missing_is_an_error() {
        super::examine(Path::new("a.rs"), &|path| (path == Path::new("a.rs")).then(|| "mod b;".into()))
            .unwrap_err();
    }
}
