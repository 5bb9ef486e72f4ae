//! The modules of a crate: their files, and what their names lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::Ident;
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A crate as a tree of modules, of which the first is the root.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) modules: Vec<Module>,
    /// The modules that define macros of the root, by `#[macro_export]`.
    exported_macros: BTreeMap<String, usize>,
}

#[derive(Debug)]
pub(super) struct Module {
    pub(super) file: PathBuf,
    pub(super) items: Vec<Item>,
    /// It is compiled for tests only.
    pub(super) is_test: bool,
    /// It is compiled for tests only, and contains some or is part of a file that is not.
    pub(super) has_tests: bool,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The names of items other than modules.
    defined: BTreeSet<String>,
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// A use declaration's path, without its tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name that it introduces; `None` for a glob.
    pub(super) name: Option<String>,
    pub(super) line: usize,
}

impl Crate {
    /// Parses the crate with this root file; `read` returns a file's text.
    pub(super) fn parse(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut tree = Self { modules: Vec::new(), exported_macros: BTreeMap::new() };
        let directory = root.parent().unwrap_or(Path::new("")).to_path_buf();
        let text = read(root).with_context(|| format!("cannot read {}", root.display()))?;
        let file = syn::parse_file(&text).with_context(|| format!("cannot parse {}", root.display()))?;
        let is_test = is_for_tests(&file.attrs);
        tree.add(None, root, &directory, &directory, file.items, is_test, read)?;
        Ok(tree)
    }

    /// Adds a module and those in it. `directory` is where the files of its modules lie, `beside` the folder of its file.
    #[expect(clippy::too_many_arguments, reason = "they are one module's place in the tree")]
    fn add(
        &mut self,
        parent: Option<usize>,
        path: &Path,
        directory: &Path,
        beside: &Path,
        items: Vec<Item>,
        is_test: bool,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<usize> {
        let index = self.modules.len();
        self.modules.push(Module {
            file: path.to_path_buf(),
            has_tests: is_test
                && (has_tests(&items)
                    || parent.is_some_and(|parent| {
                        let parent: &Module = &self.modules[parent];
                        parent.has_tests || parent.file == path
                    })),
            items: Vec::new(),
            is_test,
            parent,
            children: BTreeMap::new(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
        });
        for item in &items {
            match item {
                Item::Mod(module) => {
                    let name = name(&module.ident);
                    let is_test = is_test || is_for_tests(&module.attrs);
                    let child = if let Some((_, items)) = &module.content {
                        let inner = directory.join(&name);
                        self.add(Some(index), path, &inner, &inner, items.clone(), is_test, read)?
                    } else {
                        let (file, inner) = locate(&module.attrs, &name, directory, beside, read)
                            .with_context(|| format!("mod {name} in {}", path.display()))?;
                        let text = read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                        let parsed = syn::parse_file(&text)
                            .with_context(|| format!("cannot parse {}", file.display()))?;
                        let is_test = is_test || is_for_tests(&parsed.attrs);
                        let beside = file.parent().unwrap_or(Path::new("")).to_path_buf();
                        self.add(Some(index), &file, &inner, &beside, parsed.items, is_test, read)?
                    };
                    self.modules[index].children.insert(name, child);
                }
                Item::Use(declaration) => {
                    for import in imports(&declaration.tree) {
                        let module = &mut self.modules[index];
                        match import.name {
                            Some(name) => drop(module.imported.insert(name, import.path)),
                            None => module.globs.push(import.path),
                        }
                    }
                }
                Item::Macro(macro_)
                    if macro_.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) =>
                {
                    self.exported_macros.extend(defined(item).map(|name| (name, index)));
                }
                _ => self.modules[index].defined.extend(defined(item)),
            }
        }
        self.modules[index].items = items;
        Ok(index)
    }

    /// Returns the module that defines what `path` names in `module`; `None` if that is not in this crate, or is a
    /// local name.
    pub(super) fn resolve(&self, module: usize, path: &[String]) -> Option<usize> {
        self.follow(module, path, 0)
    }

    fn follow(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        if depth > 16 {
            return None; // Globs of each other.
        }
        let (first, mut rest) = path.split_first()?;
        let mut current = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules[module].parent?,
            _ => {
                rest = path;
                // A name alone may be local to a function, or another crate's.
                if !self.knows(module, first, depth) {
                    return None;
                }
                module
            }
        };
        while let Some((name, remaining)) = rest.split_first() {
            let here = &self.modules[current];
            if name == "super" {
                current = here.parent?;
            } else if let Some(child) = here.children.get(name) {
                current = *child;
            } else if here.defined.contains(name) {
                return Some(current);
            } else if let Some(module) = self.exported_macros.get(name).filter(|_| current == 0) {
                return Some(*module);
            } else if let Some(import) = here.imported.get(name) {
                // A name may stand for what another crate has by the same name.
                if import.first() == Some(name) && current == module && rest.len() == path.len() && depth > 0
                {
                    return None;
                }
                let whole: Vec<String> = import.iter().chain(remaining).cloned().collect();
                return self.follow(current, &whole, depth + 1);
            } else {
                let globbed = here.globs.iter().find_map(|glob| {
                    let target = self.follow(current, glob, depth + 1)?;
                    self.knows(target, name, depth + 1).then_some(target)
                });
                let Some(target) = globbed else { return Some(current) }; // From a macro.
                let whole: Vec<String> = ["self".to_string()].iter().chain(rest).cloned().collect();
                return self.follow(target, &whole, depth + 1);
            }
            rest = remaining;
        }
        Some(current)
    }

    /// Returns whether a module has a name by itself or by an import.
    fn knows(&self, module: usize, name: &str, depth: usize) -> bool {
        let here = &self.modules[module];
        here.children.contains_key(name)
            || here.defined.contains(name)
            || here.imported.contains_key(name)
            || (depth < 16
                && here.globs.iter().any(|glob| {
                    self.follow(module, glob, depth + 1)
                        .is_some_and(|target| target != module && self.knows(target, name, depth + 1))
                }))
    }
}

/// Returns a declared module's file, and the folder of the modules in it.
fn locate(
    attributes: &[Attribute],
    name: &str,
    directory: &Path,
    beside: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Result<(PathBuf, PathBuf)> {
    for attribute in attributes {
        if let Meta::NameValue(pair) = &attribute.meta
            && attribute.path().is_ident("path")
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(path) = &literal.lit
        {
            let file = normal(&beside.join(path.value()));
            let directory = file.parent().unwrap_or(Path::new("")).to_path_buf();
            return Ok((file, directory));
        }
    }
    let inner = directory.join(name);
    let candidates = [directory.join(format!("{name}.rs")), inner.join("mod.rs")];
    match candidates.iter().find(|file| read(file).is_some()) {
        Some(file) => Ok((file.clone(), inner)),
        None => bail!("neither {} nor {}", candidates[0].display(), candidates[1].display()),
    }
}

/// Removes each `..` together with the folder before it.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path {
        if part == ".." && normal.file_name().is_some() {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

/// Returns whether attributes restrict an item to tests.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|predicate| requires_test(&predicate))
        }
        _ => false,
    })
}

fn requires_test(predicate: &Meta) -> bool {
    match predicate {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            list.parse_args_with(parser).is_ok_and(|parts| parts.iter().any(requires_test))
        }
        _ => false,
    }
}

fn has_tests(items: &[Item]) -> bool {
    items.iter().any(|item| match item {
        Item::Fn(function) => function.attrs.iter().any(|attribute| attribute.path().is_ident("test")),
        Item::Mod(module) => module.content.as_ref().is_some_and(|(_, items)| has_tests(items)),
        _ => false,
    })
}

/// Returns an identifier without `r#`.
pub(super) fn name(identifier: &Ident) -> String {
    let name = identifier.to_string();
    name.strip_prefix("r#").map_or(name.clone(), String::from)
}

/// Returns the name that an item other than a module defines.
fn defined(item: &Item) -> Option<String> {
    let identifier = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name(identifier))
}

/// Returns whether a use declaration makes names available to other modules.
pub(super) fn is_re_export(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

/// Returns the single imports of a use declaration.
pub(super) fn imports(tree: &UseTree) -> Vec<Import> {
    fn walk(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<Import>) {
        match tree {
            UseTree::Path(part) => {
                path.push(name(&part.ident));
                walk(&part.tree, path, found);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, path, found)),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                found.push(Import { path: path.clone(), name: None, line });
            }
            UseTree::Name(part) => found.push(import(path, &part.ident, None)),
            UseTree::Rename(part) => found.push(import(path, &part.ident, Some(&part.rename))),
        }
    }
    fn import(path: &[String], ident: &Ident, rename: Option<&Ident>) -> Import {
        let (own, line) = (name(ident), ident.span().start().line);
        let mut path = path.to_vec();
        // `a::{self}` names `a`.
        if own != "self" || path.is_empty() {
            path.push(own);
        }
        let introduced = rename.map(name).or_else(|| path.last().cloned());
        Import { path, name: introduced, line }
    }
    let mut found = Vec::new();
    walk(tree, &mut Vec::new(), &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_tree_is_flattened() {
        let item: syn::ItemUse = syn::parse_str("use a::{self, b::{C as D, e}, f::*};").unwrap();
        let found: Vec<(String, Option<String>)> =
            imports(&item.tree).into_iter().map(|import| (import.path.join("::"), import.name)).collect();
        let pair = |path: &str, name: &str| (path.to_string(), Some(name.to_string()));
        assert_eq!(
            found,
            [pair("a", "a"), pair("a::b::C", "D"), pair("a::b::e", "e"), ("a::f".to_string(), None)]
        );
    }

    #[test]
    fn only_what_is_never_compiled_otherwise_is_for_tests() {
        let is_test = |text: &str| {
            let item: syn::ItemMod = syn::parse_str(&format!("#[{text}] mod a;")).unwrap();
            is_for_tests(&item.attrs)
        };
        assert!(is_test("cfg(test)") && is_test("cfg(all(test, loom))"));
        assert!(!is_test("cfg(any(test, loom))") && !is_test("cfg(not(test))") && !is_test("cfg(loom)"));
    }
}
