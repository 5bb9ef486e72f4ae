//! The declarations of an `nccl.h`, ours or an official one, as a flat list.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use proc_macro2::TokenStream;
use quote::ToTokens;

use crate::bindings;

/// The macros that select the two views of `nccl.h`: a program's, and that of NCCL's own build on Linux.
pub(crate) const VIEWS: [&[&str]; 2] = [&[], &["-DNCCL_OS_LINUX"]];

/// The declarations of a header.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    /// `NCCL_VERSION_CODE`.
    pub(crate) version: u32,
    pub(crate) items: BTreeMap<String, Declaration>,
}

/// The declaration of a function, a type, a field (`struct.field`), an enum value, a constant or a macro. The version
/// in the name of a struct (`ncclConfig_v23100`) is not part of the item's name.
#[derive(Debug, Clone)]
pub(crate) struct Declaration {
    pub(crate) kind: Kind,
    /// The whole declaration.
    pub(crate) text: String,
    /// The part that decides the ABI, and so must not change between releases: without the names of parameters and the
    /// versions in the names of structs.
    pub(crate) abi: String,
    /// The release that the comment names; the comments of official headers name none.
    pub(crate) since: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Function,
    Struct,
    /// A struct without a definition.
    Opaque,
    Field,
    Alias,
    EnumValue,
    Constant,
    /// A macro for which bindgen generates no constant.
    Macro,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Function => "functions",
            Self::Struct => "types",
            Self::Opaque => "opaque types",
            Self::Field => "fields",
            Self::Alias => "type aliases",
            Self::EnumValue => "enum values",
            Self::Constant => "constants",
            Self::Macro => "other macros",
        })
    }
}

impl Header {
    /// Reads a header through bindgen, configured as for the crate's bindings, and the macros through `cc`.
    pub(crate) fn read(header: &Path, stubs: &Path, defines: &[&str]) -> Result<Self> {
        let directory = header.parent().unwrap_or(Path::new("."));
        bindings::find_libclang()?;
        // The crate leaves the pnccl twins out, but they are declared and so compared.
        let builder =
            bindings::builder(header, directory, stubs).clang_args(defines).allowlist_function("pnccl.*");
        let rust = builder.generate().with_context(|| header.display().to_string())?.to_string();
        let mut items = parse(&rust).context("bindgen's output")?;
        for (name, text) in macros(header, directory, stubs, defines)? {
            items.entry(name).or_insert_with(|| Declaration::new(Kind::Macro, text));
        }
        Ok(Self { version: version(&items).with_context(|| header.display().to_string())?, items })
    }
}

impl Declaration {
    fn new(kind: Kind, text: String) -> Self {
        let abi = text.split(' ').map(untagged).collect::<Vec<_>>().join(" ");
        Self { kind, text, abi, since: None }
    }
}

/// Returns the name without a struct's version.
fn untagged(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((stem, code)) if code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit()) => stem,
        _ => name,
    }
}

fn version(items: &BTreeMap<String, Declaration>) -> Result<u32> {
    let code = items.get("NCCL_VERSION_CODE").context("NCCL_VERSION_CODE is not declared")?;
    let value = code.text.rsplit(' ').next().unwrap_or_default();
    value.parse().with_context(|| format!("NCCL_VERSION_CODE is {value:?}"))
}

fn parse(rust: &str) -> Result<BTreeMap<String, Declaration>> {
    let since: HashMap<_, _> = bindings::items_with_since(rust).into_iter().collect();
    let mut items = BTreeMap::new();
    let mut add = |name: String, mut declaration: Declaration| {
        // A twin was introduced with its function.
        let documented = name.strip_prefix('p').filter(|name| name.starts_with("nccl")).unwrap_or(&name);
        declaration.since = since.get(documented).copied();
        items.insert(name, declaration);
    };
    for item in syn::parse_file(rust)?.items {
        match item {
            syn::Item::Const(c) => {
                let text = format!("{} = {}", tokens(&c.ty), tokens(&c.expr));
                add(c.ident.to_string(), Declaration::new(Kind::Constant, text));
            }
            syn::Item::Type(t) => add(t.ident.to_string(), Declaration::new(Kind::Alias, tokens(&t.ty))),
            syn::Item::Struct(s) => {
                let layout = format!("{} struct {}", representation(&s.attrs), s.ident);
                record(&mut add, &s.ident, layout, &s.fields);
            }
            syn::Item::Union(u) => {
                let layout = format!("{} union {}", representation(&u.attrs), u.ident);
                record(&mut add, &u.ident, layout, &syn::Fields::Named(u.fields));
            }
            syn::Item::Impl(i) if i.trait_.is_none() => {
                for item in i.items {
                    if let syn::ImplItem::Const(c) = item {
                        add(c.ident.to_string(), Declaration::new(Kind::EnumValue, tokens(&c.expr)));
                    }
                }
            }
            syn::Item::ForeignMod(block) => {
                for item in block.items {
                    if let syn::ForeignItem::Fn(f) = item {
                        add(f.sig.ident.to_string(), function(&f.sig));
                    }
                }
            }
            // Implementations of traits, which bindgen derives.
            _ => {}
        }
    }
    Ok(items)
}

/// Adds a struct or a union, and its fields. The position is part of a field's text, so that a field inserted before
/// others is a difference.
fn record(
    add: &mut impl FnMut(String, Declaration),
    ident: &syn::Ident,
    mut layout: String,
    fields: &syn::Fields,
) {
    let tag = ident.to_string();
    let name = untagged(&tag);
    let mut kind = Kind::Struct;
    for (position, field) in fields.iter().enumerate() {
        let ty = tokens(&field.ty);
        match &field.ident {
            // bindgen's form of a struct without a definition.
            Some(ident) if ident == "_unused" => kind = Kind::Opaque,
            Some(ident) => {
                let text = format!("field {position} : {ty}");
                add(format!("{name}.{ident}"), Declaration::new(Kind::Field, text));
            }
            // The integer inside an enum.
            None => layout.push_str(&format!(" ( {ty} )")),
        }
    }
    add(name.to_string(), Declaration::new(kind, layout));
}

fn function(signature: &syn::Signature) -> Declaration {
    let types = signature.inputs.iter().filter_map(|input| match input {
        syn::FnArg::Typed(argument) => Some(tokens(&argument.ty)),
        syn::FnArg::Receiver(_) => None,
    });
    let types = types.collect::<Vec<_>>().join(" , ");
    let output = tokens(&signature.output);
    let inputs = tokens(&signature.inputs);
    let abi = Declaration::new(Kind::Function, format!("fn ( {types} ) {output}"));
    Declaration { text: format!("fn ( {inputs} ) {output}"), ..abi }
}

/// Returns `#[repr(...)]`, the only attribute that depends on the header alone; derives follow from the fields.
fn representation(attributes: &[syn::Attribute]) -> String {
    attributes.iter().filter(|a| a.path().is_ident("repr")).map(tokens).collect()
}

fn tokens(item: &impl ToTokens) -> String {
    item.to_token_stream().to_string().replace(":: core :: ffi :: ", "")
}

/// Returns NCCL's macros as the C compiler lists them: bindgen omits those that are not a number or a string.
fn macros(header: &Path, directory: &Path, stubs: &Path, defines: &[&str]) -> Result<Vec<(String, String)>> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-E", "-dM", "-x", "c", "-std=c11", "-nostdinc"])
        .args(defines)
        .args([directory, &stubs.join("cuda"), &stubs.join("libc")].map(|d| format!("-I{}", d.display())))
        .arg(header)
        .output()
        .with_context(|| format!("cannot run the C compiler {compiler:?} (CC names another)"))?;
    if !output.status.success() {
        bail!(
            "{compiler} cannot read {}: {}",
            header.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8(output.stdout).context("the C compiler's output")?;
    Ok(text.lines().filter_map(nccl_macro).collect())
}

fn nccl_macro(line: &str) -> Option<(String, String)> {
    let definition = line.strip_prefix("#define ")?;
    let end = definition.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(definition.len());
    let (name, body) = definition.split_at(end);
    let ours = ["NCCL_", "nccl", "pnccl"].iter().any(|prefix| name.starts_with(prefix));
    // Rust's lexer reads most of these macros; the others are compared as text.
    let body = body.parse::<TokenStream>().map_or_else(|_| body.trim().to_string(), |t| t.to_string());
    ours.then(|| (name.to_string(), format!("#define {body}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untagged_removes_only_versions() {
        assert_eq!(untagged("ncclConfig_v23100"), "ncclConfig");
        assert_eq!(untagged("ncclWindow_vidmem"), "ncclWindow_vidmem");
    }

    #[test]
    fn macros_that_differ_in_whitespace_are_equal() {
        let spaced = nccl_macro("#define NCCL_VERSION(X,Y) (((X) <= 2)  ? ( X ) : (Y))");
        assert_eq!(spaced, nccl_macro("#define NCCL_VERSION(X, Y) (((X) <= 2) ? (X) : (Y))"));
        assert!(spaced.is_some());
        assert_eq!(nccl_macro("#define __linux__ 1"), None);
    }
}
