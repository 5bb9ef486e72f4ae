//! The functions that a library of the CUDA emulation exports: the reader of its table, and the code that its build script
//! generates from the table.
//!
//! A line of a table is `NAME VERSIONS STATE`. `VERSIONS` is the first version that has the function, such as `12` or `12.3`, or
//! the first and the last one: `12-12`. `STATE` is `supported` or `unsupported`. Lines are sorted by name; `#` begins a comment.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Parses a version of CUDA, or of another library of NVIDIA, and returns it as CUDA encodes it: 12030 for 12.3.
fn parse_version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1000 && minor < 100).then_some(major * 1000 + minor * 10)
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The exported name.
    pub name: String,
    /// The first version that has the function: 12030 is 12.3.
    pub first: u32,
    /// The last version that has the function, if a later one removed it.
    pub last: Option<u32>,
    /// Set if the library defines the function. Otherwise it exports a stub.
    pub is_supported: bool,
}

impl Function {
    /// Returns whether a major version has the function.
    pub fn is_in(&self, major: u32) -> bool {
        self.first / 1000 <= major && self.last.is_none_or(|last| major <= last / 1000)
    }

    fn parse(line: &str) -> Result<Self, &'static str> {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[name, versions, state] = &fields[..] else { return Err("expected NAME VERSIONS STATE") };
        let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !name.bytes().all(is_in_name) || name.starts_with(|first: char| first.is_ascii_digit()) {
            return Err("expected the name of a C function");
        }
        let (first, last) = match versions.split_once('-') {
            Some((first, last)) => (parse_version(first), Some(parse_version(last))),
            None => (parse_version(versions), None),
        };
        let (Some(first), None | Some(Some(_))) = (first, last) else {
            return Err("expected a version such as 12 or 12.3, or the first and the last one: 12-12");
        };
        let last = last.flatten();
        if last.is_some_and(|last| last < first) {
            return Err("expected a last version that is not before the first one");
        }
        let is_supported = match state {
            "supported" => true,
            "unsupported" => false,
            _ => return Err("expected `supported` or `unsupported`"),
        };
        Ok(Self { name: name.to_owned(), first, last, is_supported })
    }
}

/// Parses a table. `file` is its name in errors.
///
/// # Errors
/// Returns an error if a line is malformed or not in order. The error contains the first such line, and what was expected.
pub fn parse(file: &str, text: &str) -> Result<Vec<Function>, String> {
    let mut functions: Vec<Function> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let error = |expected: &str| format!("{file}:{}: {expected}, but found {line:?}", index + 1);
        let function = Function::parse(line).map_err(error)?;
        if let Some(previous) = functions.last().filter(|previous| previous.name >= function.name) {
            return Err(error(&format!("expected a name that sorts after {}", previous.name)));
        }
        functions.push(function);
    }
    Ok(functions)
}

/// Reads a table.
///
/// # Errors
/// Returns an error if the file cannot be read, or if [`parse`] fails.
pub fn read(file: &Path) -> Result<Vec<Function>, String> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    parse(&name, &text)
}

/// Reads a table for a build script, which runs again when the table changes. `file` is relative to the package. If [`read`] fails,
/// cargo reports the error, and the process exits.
pub fn read_for_build(file: &str) -> Vec<Function> {
    println!("cargo::rerun-if-changed={file}");
    read(Path::new(file)).unwrap_or_else(|error| {
        println!("cargo::error={error}");
        process::exit(1)
    })
}

/// Generates the stubs of a major version for a build script, and gives its shared object the soname and the symbol versions of
/// NVIDIA's library.
pub fn build_library(table: &str, major: u32, soname: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    let functions = read_for_build(table);
    write_for_build("stubs.rs", &stubs(functions.iter().filter(|function| function.is_in(major))));
    for argument in [
        &*format!("-Wl,-soname,{soname}"),
        // In NVIDIA's library, the version of every symbol is the soname, and programs linked with it require that version.
        // Of the usual linkers, only GNU ld adds a version to the symbols that rustc exports.
        "-Wl,--default-symver",
        "-fuse-ld=bfd",
        // Binds its calls to its own functions, even if other objects in the process have functions with the same names.
        "-Wl,-Bsymbolic",
        // Other libraries and functions of `atexit` may call it after the program has closed it.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Writes a file for a build script to `OUT_DIR`.
pub fn write_for_build(name: &str, text: &str) {
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let file = directory.join(name);
    fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Generates a stub for each unsupported function.
///
/// The module that includes the code must have the type `Status`, and `fn not_supported(function: &'static str) -> Status`.
pub fn stubs<'a>(functions: impl IntoIterator<Item = &'a Function>) -> String {
    let mut code = String::new();
    for Function { name, .. } in functions.into_iter().filter(|function| !function.is_supported) {
        // The caller's arguments, which differ from function to function, are ignored.
        let _ = writeln!(
            code,
            "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> Status {{ not_supported(\"{name}\") }}"
        );
    }
    code
}

/// Generates the static `FUNCTIONS`, in which `cuGetProcAddress` searches.
///
/// For each name without a suffix such as `_v2`, in order, it lists the functions that the name means, oldest first, each with
/// its first CUDA version. The functions are declared `extern "C"`, so linking fails if one is not defined.
pub fn addresses(functions: &[Function]) -> String {
    let mut versions: BTreeMap<&str, Vec<(u32, &str)>> = BTreeMap::new();
    let mut code = String::from("unsafe extern \"C\" {\n");
    for Function { name, first, .. } in functions {
        let _ = writeln!(code, "    fn {name}();");
        versions.entry(base(name)).or_default().push((*first, name));
    }
    code += "}\n\npub(super) static FUNCTIONS: &[(&str, &[(c_uint, unsafe extern \"C\" fn())])] = &[\n";
    for (base, mut versions) in versions {
        versions.sort_unstable();
        let versions: Vec<_> = versions.iter().map(|(since, name)| format!("({since}, {name})")).collect();
        let _ = writeln!(code, "    (\"{base}\", &[{}]),", versions.join(", "));
    }
    code + "];\n"
}

/// Generates the array `NAMES`, and the enum `Index` with the index of each name.
pub fn names(functions: &[Function]) -> String {
    let mut code = format!("const NAMES: [&std::ffi::CStr; {}] = [\n", functions.len());
    let mut index = String::from("#[allow(dead_code, non_camel_case_types)]\npub(crate) enum Index {\n");
    for Function { name, .. } in functions {
        let _ = writeln!(code, "    c\"{name}\",");
        let _ = writeln!(index, "    {name},");
    }
    code + "];\n\n" + &index + "}\n"
}

/// Returns the name of a function without its version suffix, such as `_v2`.
pub fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, number)) if number.parse::<u8>().is_ok() => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::{addresses, base, parse, stubs};

    const TABLE: &str = "# A comment.\n\ncuA 2.0 supported\ncuA_v2 12.3 unsupported\ncuB 12-12 unsupported\n";

    #[test]
    fn table_has_versions_and_states() {
        let functions = parse("t", TABLE).expect("a table");
        let [a, a2, b] = &functions[..] else { panic!("{functions:?}") };
        assert_eq!((a.first, a2.first), (2000, 12030));
        assert_eq!([a, a2, b].map(|function| function.is_supported), [true, false, false]);
        assert_eq!([11, 12, 13].map(|major| a2.is_in(major)), [false, true, true]);
        assert_eq!([11, 12, 13].map(|major| b.is_in(major)), [false, true, false]);
    }

    #[test]
    fn generated_code_has_stubs_and_addresses() {
        let functions = parse("t", TABLE).expect("a table");
        let stubs = stubs(&functions);
        assert!(
            !stubs.contains("fn cuA()") && stubs.contains("fn cuB() -> Status { not_supported(\"cuB\") }")
        );
        let addresses = addresses(&functions);
        assert!(addresses.contains("(\"cuA\", &[(2000, cuA), (12030, cuA_v2)]),"), "{addresses}");
        assert!(addresses.contains("fn cuA_v2();"), "{addresses}");
    }

    #[test]
    fn error_has_the_line_and_what_was_expected() {
        const VERSIONS: &str = "expected a version such as 12 or 12.3, or the first and the last one: 12-12";
        for (line, expected) in [
            ("cuC 12", "expected NAME VERSIONS STATE"),
            ("cu-C 12 supported", "expected the name of a C function"),
            ("cuC 12. supported", VERSIONS),
            ("cuC 12- supported", VERSIONS),
            ("cuC 13-12 supported", "expected a last version that is not before the first one"),
            ("cuC 12 maybe", "expected `supported` or `unsupported`"),
            ("cuB 12 supported", "expected a name that sorts after cuB"),
        ] {
            let error = parse("t", &format!("{TABLE}{line}\n")).expect_err(line);
            assert_eq!(error, format!("t:6: {expected}, but found {line:?}"));
        }
    }

    #[test]
    fn base_has_no_version() {
        assert_eq!(["cuA", "cuA_v2", "cuA_vX"].map(base), ["cuA", "cuA", "cuA_vX"]);
    }
}
