//! The project's only bindgen configuration: from the C headers to Rust.
//!
//! The build script generates the bindings with it, and reads the headers that it compares. `cargo xtask bindings` and `cargo
//! xtask headers` run the build script.

use std::any::Any;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::panic;
use std::path::Path;

use bindgen::callbacks::{ImplementsTrait, ParseCallbacks};
use bindgen::{Builder, CodegenConfig, EnumVariation, Formatter};

/// The generated files and their texts.
pub(crate) struct Bindings(pub(crate) Vec<(&'static str, String)>);

impl Bindings {
    /// Runs bindgen on `root/wrapper.h`.
    ///
    /// There are three passes: the types; the functions as an `extern` block; the functions as a struct that is filled at run
    /// time. The signature of every function, and the version that introduced each item, are read from the output of the first
    /// two. The header of the device API's host functions goes through the same first two passes, without the items of `nccl.h`.
    /// The struct has the functions of both headers, like a library.
    ///
    /// # Errors
    /// Returns libclang's message if libclang rejects the header. If libclang is missing, bindgen *panics*.
    pub(crate) fn generate(root: &Path) -> Result<Self, String> {
        let vendor = root.join("vendor-headers");
        let generate =
            |builder: Builder| builder.generate().map(|b| b.to_string()).map_err(|e| e.to_string());
        let builder = || builder(&root.join("wrapper.h"), &vendor, &vendor.join("stubs"));

        // With the sizes and offsets that libclang computes, which the compiler checks against its own.
        let types = generate(builder().blocklist_function(".*").layout_tests(true))?;
        let linked = generate(builder().with_codegen_config(CodegenConfig::FUNCTIONS))?;
        let both = || self::builder(&vendor.join("nccl_device_host.h"), &vendor, &vendor.join("stubs"));
        let device =
            || both().blocklist_file(".*/(nccl|cuda_runtime)\\.h").parse_callbacks(Box::new(PlainData));
        let device_types = generate(device().blocklist_function(".*").layout_tests(true))?;
        let device_linked = generate(device().with_codegen_config(CodegenConfig::FUNCTIONS))?;
        let dynamic = generate(
            both()
                .with_codegen_config(CodegenConfig::FUNCTIONS)
                .dynamic_library_name("NcclLibrary")
                .dynamic_link_require_all(false)
                .generate_comments(false),
        )?;

        let texts = [&types, &linked, &device_types, &device_linked];
        let since: Vec<_> = texts.into_iter().flat_map(|text| items_with_since(text)).collect();
        let functions = functions("for_each_function", "nccl.h", &linked)
            + &by_release("functions_by_release", &linked, &since);
        let device_functions =
            self::functions("for_each_device_function", "nccl_device_host.h", &device_linked)
                + &by_release("device_functions_by_release", &device_linked, &since);
        let initializers = initializers(&vendor.join("nccl.h"), &types)?;
        let table = c_table("FUNCTIONS", &linked, &since);
        let device_table = c_table("DEVICE_FUNCTIONS", &device_linked, &since);
        let since = since_constant(&since);
        Ok(Self(vec![
            ("types.rs", types),
            ("linked.rs", linked),
            ("linked.c", table),
            ("dynamic.rs", dynamic),
            ("functions.rs", functions),
            ("since.rs", since),
            ("initializers.rs", initializers),
            ("device_types.rs", device_types),
            ("device_functions.rs", device_functions),
            ("device.c", device_table),
        ]))
    }
}

/// Returns the bindgen configuration. It is hermetic: no header of the host is read and the target is fixed, so
/// every machine generates the same bytes. NCCL exists for 64-bit Linux only, where the declarations are the same
/// for every architecture.
pub(crate) fn builder(header: &Path, include: &Path, stubs: &Path) -> Builder {
    let include_dirs =
        [include, &stubs.join("cuda"), &stubs.join("libc")].map(|dir| format!("-I{}", dir.display()));
    bindgen::builder()
        .header(header.display().to_string())
        .clang_args(["-x", "c", "-std=c11", "-nostdinc", "-fparse-all-comments"])
        .clang_arg("--target=x86_64-unknown-linux-gnu")
        .clang_args(include_dirs)
        // Otherwise every pass runs `llvm-config` and `clang`, to find directories that `-nostdinc` excludes.
        .detect_include_paths(false)
        .allowlist_function("nccl.*")
        .allowlist_type("nccl.*")
        .allowlist_var("(NCCL|nccl).*")
        // A library may return a code that this header does not have: undefined behavior for a Rust enum, but not
        // for a transparent integer.
        .default_enum_style(EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        .layout_tests(false)
        // The comment contains bindgen's version; the committed copy is compared with the output of later versions.
        .disable_header_comment()
        .merge_extern_blocks(true)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("bindgen supports Rust 1.85"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .wrap_unsafe_ops(true)
        .formatter(Formatter::Prettyplease)
}

/// Removes the clang arguments that are meant for other crates' headers from the environment: they may change the layout of
/// structs.
///
/// # Safety
/// The process must have only one thread.
pub(crate) unsafe fn remove_extra_arguments() {
    let of_others = |(name, _): (OsString, _)| {
        Some(name).filter(|name| name.to_string_lossy().starts_with("BINDGEN_EXTRA_CLANG_ARGS"))
    };
    for name in env::vars_os().filter_map(of_others) {
        // SAFETY: the caller guarantees that no other thread reads the environment.
        unsafe { env::remove_var(name) };
    }
}

/// Runs bindgen, and returns the message of a panic as an error: bindgen panics if libclang is missing or lacks functions.
pub(crate) fn catch<T>(run: impl FnOnce() -> Result<T, String> + panic::UnwindSafe) -> Result<T, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(run);
    panic::set_hook(hook);
    result.unwrap_or_else(|payload| Err(panic_message(&*payload)))
}

/// Fails if there is no libclang, without which bindgen would panic.
pub(crate) fn find_libclang() -> Result<(), String> {
    let version = catch(|| Ok(bindgen::clang_version()));
    version.map(drop).map_err(|reason| format!("bindgen needs libclang (on Debian: libclang-dev): {reason}"))
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("bindgen panicked").into()
}

/// A callback by which bindgen treats the types of `nccl.h` in the other header's structs as plain data: handles and numbers.
#[derive(Debug)]
struct PlainData;

impl ParseCallbacks for PlainData {
    fn blocklisted_type_implements_trait(
        &self,
        _: &str,
        _: bindgen::callbacks::DeriveTrait,
    ) -> Option<ImplementsTrait> {
        Some(ImplementsTrait::Yes)
    }
}

/// Generates the macro `name!`, which passes the signature of every function to another macro. The signatures are
/// taken from bindgen's extern block, so there is no list to maintain.
fn functions(name: &str, header: &str, linked: &str) -> String {
    let mut text = format!(
        "/// Calls `$callback!` with the signature of every function of `{header}`.\n\
         #[doc(hidden)]\n#[macro_export]\nmacro_rules! {name} {{\n    ($callback:ident) => {{\n        $callback! {{\n",
    );
    signatures(linked).iter().for_each(|signature| text += &format!("            {signature}\n"));
    text + "        }\n    };\n}\n"
}

/// Generates the macro `name!`, which passes the name of a table and the names of its functions to another macro: first the
/// functions of the oldest supported version, then newer functions.
fn by_release(name: &str, linked: &str, since: &[(String, u32)]) -> String {
    let (oldest, newer): (Vec<_>, Vec<_>) =
        names(linked).into_iter().partition(|name| is_oldest(name, since));
    format!(
        "/// Calls `$callback!` with the name of a table, and of its functions by version: NCCL 2.13.4, and newer.\n\
         #[allow(unused_macros)]\nmacro_rules! {name} {{\n    ($callback:ident, $table:ident) => {{\n        \
         $callback! {{\n            $table;\n            oldest: {};\n            newer: {};\n        }}\n    \
         }};\n}}\n",
        oldest.join(" "),
        newer.join(" ")
    )
}

/// Returns whether the oldest supported version has the function.
fn is_oldest(name: &str, since: &[(String, u32)]) -> bool {
    const OLDEST: u32 = 21_304;
    since.iter().any(|(item, code)| item == name && *code <= OLDEST)
}

/// Returns the names of the functions, in the header's order.
fn names(linked: &str) -> Vec<String> {
    let name = |signature: &str| Some(signature.strip_prefix("fn ")?.split_once('(')?.0.to_string());
    signatures(linked).iter().filter_map(|signature| name(signature)).collect()
}

/// Returns the signatures, `fn name(argument: type, ...) -> type;`, one line each, in the header's order.
fn signatures(linked: &str) -> Vec<String> {
    linked
        .split("pub fn ")
        .skip(1)
        .filter_map(|rest| rest.split_once(';'))
        .map(|(signature, _)| {
            let one_line = signature.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("fn {};", one_line.replace("( ", "(").replace(",)", ")").replace(", )", ")"))
        })
        .collect()
}

/// Generates the table of the archive's functions as a C array, in the header's order. Functions newer than the oldest version
/// are weak references, which are null if the archive lacks them. They are hidden, so that the dynamic linker does not take them
/// from another NCCL. Rust cannot express this: it assumes that the address of a function is not null. The array's name is a
/// macro, which `build/link` defines as a name that no other version of this crate has.
fn c_table(array: &str, linked: &str, since: &[(String, u32)]) -> String {
    let names = names(linked);
    let mut text = String::from("/* See build/bindings.rs, `c_table`. */\n");
    for name in &names {
        let attributes =
            if is_oldest(name, since) { "" } else { "__attribute__((weak, visibility(\"hidden\"))) " };
        text += &format!("{attributes}void {name}(void);\n");
    }
    text += &format!("void (*const {array}[])(void) = {{\n");
    names.iter().for_each(|name| text += &format!("    {name},\n"));
    text + "};\n"
}

/// Generates `initializer()` for each struct that has a macro `..._INITIALIZER` in the header. bindgen does not translate
/// these macros, which list a value for each field.
fn initializers(header: &Path, types: &str) -> Result<String, String> {
    let text = fs::read_to_string(header).map_err(|error| format!("{}: {error}", header.display()))?;
    let mut initializers = String::new();
    for definition in text.split("\n#define ") {
        let (name, rest) = definition.split_once(char::is_whitespace).unwrap_or_default();
        if name.ends_with("_INITIALIZER") {
            let initializer = initializer(name, rest, types);
            initializers += &initializer.ok_or_else(|| format!("{name} has an unexpected form"))?;
        }
    }
    Ok(initializers)
}

fn initializer(name: &str, definition: &str, types: &str) -> Option<String> {
    let (values, _) = definition.split_once('{')?.1.split_once('}')?;
    let values = values.split([',', '\\', '\n']).map(str::trim).filter(|value| !value.is_empty());
    let ty = values.clone().next()?.strip_prefix("sizeof(")?.strip_suffix(')')?;
    let tag = types.split_once(&format!("pub type {ty} = "))?.1.split(';').next()?;
    let fields = types.split_once(&format!("pub struct {tag} {{"))?.1.split("\n}").next()?;
    let fields =
        fields.lines().filter_map(|line| line.strip_prefix("    pub ")?.strip_suffix(',')?.split_once(": "));

    let mut text = format!(
        "impl {ty} {{\n    /// Returns `{name}`.\n    #[must_use]\n    pub fn initializer() -> Self {{\n        Self {{\n"
    );
    for ((field, ty), value) in fields.zip(values) {
        let value = match value {
            "NCCL_CONFIG_UNDEF_PTR" => "::core::ptr::null_mut()".into(),
            _ if value.starts_with("sizeof(") => "::core::mem::size_of::<Self>()".into(),
            _ if value.starts_with(|c: char| c.is_ascii_digit()) => value.into(),
            // A constant, or a value of an enum: a constant of the enum's type.
            _ => match types.split_once(&format!("    pub const {value}: ")) {
                Some((_, rest)) => format!("{}::{value}.0 as {ty}", rest.split(' ').next()?),
                None => format!("{value} as {ty}"),
            },
        };
        text += &format!("            {field}: {value},\n");
    }
    Some(text + "        }\n    }\n}\n")
}

/// Generates the constant `SINCE`, the version of every item; see [`items_with_since`].
fn since_constant(since: &[(String, u32)]) -> String {
    let mut text = String::from(
        "/// The items of the headers: `(item, version code of the first version that has it)`; a field is\n\
         /// `struct.field`.\n\
         pub const SINCE: &[(&str, u32)] = &[\n",
    );
    since.iter().for_each(|(name, code)| text += &format!("    (\"{name}\", {code}),\n"));
    text + "];\n"
}

/// Returns `(name, version code)` of every function, enum value and field, from the `Since NCCL x.y.z.` that ends
/// each comment of the header. The name of a field is `struct.field`.
pub(crate) fn items_with_since(text: &str) -> Vec<(String, u32)> {
    let mut items = Vec::new();
    let mut since = None;
    let mut parent = String::new();
    for line in text.lines().map(str::trim) {
        let Some(declaration) = line.strip_prefix("pub ") else {
            since = version_code(line).or(since);
            continue;
        };
        let is_name = |c: char| !(c.is_alphanumeric() || c == '_');
        let name = |kind: &str| {
            let rest = declaration.strip_prefix(kind)?;
            rest.split(is_name).next().filter(|name| !name.is_empty())
        };
        let item = if let Some(name) = name("struct ").or_else(|| name("union ")) {
            // The tag of a versioned struct (ncclConfig_v23100) changes with the header; the item stays the same.
            parent = name.split("_v2").next().unwrap_or(name).to_string();
            Some(parent.clone())
        } else if let Some(name) = name("const ").or_else(|| name("fn ")).or_else(|| name("type ")) {
            Some(name.to_string())
        } else {
            name("").map(|field| format!("{parent}.{field}"))
        };
        if let (Some(item), Some(code)) = (item, since.take()) {
            items.push((item, code));
        }
    }
    items
}

/// Parses the version in a line of a comment.
fn version_code(line: &str) -> Option<u32> {
    let version = line.split_once("Since NCCL ")?.1;
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
    Some(major * 10_000 + minor * 100 + patch)
}
