//! The declarations of an `nccl.h`, as a flat list.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use bindgen::callbacks::{ParseCallbacks, Token};
use quote::ToTokens;

use crate::bindings;

/// The declarations of a header.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    /// `NCCL_VERSION_CODE`.
    pub(crate) version: u32,
    pub(crate) items: BTreeMap<String, Declaration>,
}

/// The declaration of a function, a type, a field (`struct.field`), an enum value, a constant or a macro. The item's name
/// excludes the version in the name of a struct (`ncclConfig_v23100`).
#[derive(Debug, Clone)]
pub(crate) struct Declaration {
    pub(crate) kind: Kind,
    /// The whole declaration.
    pub(crate) text: String,
    /// The part that determines the ABI and must not change between versions: without the names of parameters and the
    /// versions in the names of structs.
    pub(crate) abi: String,
    /// The version that the comment names; comments of official headers name none.
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

impl Header {
    /// Reads a header through bindgen, configured as for the crate's bindings.
    ///
    /// The stubs precede the header's own directory, which may be the system's, with headers of CUDA and of a C library.
    ///
    /// # Errors
    /// Returns libclang's message if libclang rejects the header. If libclang is missing, bindgen *panics*.
    pub(crate) fn read(header: &Path, stubs: &Path, defines: &[&str]) -> Result<Self, String> {
        let macros = Macros::default();
        let builder = bindings::builder(header, &stubs.join("hip"), stubs)
            .clang_arg("-idirafter")
            .clang_arg(header.parent().unwrap_or(header).display().to_string())
            .clang_args(defines)
            // The crate leaves the pnccl twins out, but they are declared and so compared.
            .allowlist_function("pnccl.*")
            .parse_callbacks(Box::new(macros.clone()));
        let of = |reason: String| format!("{}: {}", header.display(), reason.trim());
        let rust = builder.generate().map_err(|error| of(error.to_string()))?.to_string();
        let mut items = parse(&rust).map_err(|error| of(format!("bindgen's output: {error}")))?;
        for (name, text) in macros.0.take() {
            items.entry(name).or_insert_with(|| Declaration::new(Kind::Macro, text));
        }
        Ok(Self { version: version(&items).map_err(of)?, items })
    }

    /// Returns whether the header is RCCL's, which has macros `RCCL_...`.
    pub(crate) fn is_rccl(&self) -> bool {
        self.items.keys().any(|name| name.starts_with("RCCL_"))
    }
}

impl Declaration {
    fn new(kind: Kind, text: String) -> Self {
        let abi = text.split(' ').map(untagged).collect::<Vec<_>>().join(" ");
        Self { kind, text, abi, since: None }
    }
}

/// Returns the name without a struct's version.
pub(crate) fn untagged(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((stem, code)) if code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit()) => stem,
        _ => name,
    }
}

fn version(items: &BTreeMap<String, Declaration>) -> Result<u32, String> {
    let code =
        items.get("NCCL_VERSION_CODE").ok_or("it does not define NCCL_VERSION_CODE, as every nccl.h does")?;
    let value = code.text.rsplit(' ').next().unwrap_or_default();
    value.parse().map_err(|_| format!("NCCL_VERSION_CODE is {value:?}; expected a number such as 23203"))
}

fn parse(rust: &str) -> syn::Result<BTreeMap<String, Declaration>> {
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

/// Adds a struct or a union, and its fields. A field's text contains its position, so that a field inserted before others
/// is a difference.
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

/// Returns `#[repr(...)]`, the only attribute that depends only on the header; derives follow from the fields.
fn representation(attributes: &[syn::Attribute]) -> String {
    attributes.iter().filter(|a| a.path().is_ident("repr")).map(tokens).collect()
}

fn tokens(item: &impl ToTokens) -> String {
    item.to_token_stream().to_string().replace(":: core :: ffi :: ", "")
}

/// A callback that collects the macros of NCCL: bindgen generates constants only for numbers and strings.
#[derive(Debug, Clone, Default)]
struct Macros(Rc<RefCell<BTreeMap<String, String>>>);

impl Macros {
    fn add<'a>(&self, name: &str, tokens: impl Iterator<Item = &'a [u8]>) {
        if ["NCCL_", "RCCL_", "nccl", "pnccl"].iter().any(|prefix| name.starts_with(prefix)) {
            // The first token of a line begins with the end of the line before.
            let start: &[char] = &['\\', '\r', '\n'];
            let tokens =
                tokens.map(|token| String::from_utf8_lossy(token).trim_start_matches(start).to_string());
            let text = ["#define".into()].into_iter().chain(tokens).collect::<Vec<_>>().join(" ");
            self.0.borrow_mut().insert(name.into(), text);
        }
    }
}

impl ParseCallbacks for Macros {
    fn modify_macro(&self, name: &str, tokens: &mut Vec<Token>) {
        // The first one is the name.
        self.add(name, tokens.iter().skip(1).map(|token| &*token.raw));
    }

    fn func_macro(&self, signature: &str, body: &[&[u8]]) {
        let start = signature.find('(').unwrap_or(signature.len());
        let (name, parameters) = signature.split_at(start);
        self.add(name, [parameters.as_bytes()].into_iter().chain(body.iter().copied()));
    }
}
