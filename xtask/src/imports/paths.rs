//! The paths that the modules of a crate mention.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Field, FieldValue, ImplItem, Item, ItemUse, Macro, Path, Stmt, TraitItem, Variant, Visibility};

use super::modules::{Crate, imports, is_for_tests, is_re_export, name};

/// A path, where it is mentioned.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) module: usize,
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    /// It is part of code for tests, in a module that is not.
    pub(super) is_test: bool,
}

/// Returns the paths that a crate's code mentions, except in modules of tests and in re-exports.
pub(super) fn mentions(tree: &Crate) -> Vec<Mention> {
    let mut mentions = Vec::new();
    for (index, module) in tree.modules.iter().enumerate() {
        if module.has_tests {
            continue;
        }
        let mut visitor = Visitor { module: index, is_test: false, mentions: &mut mentions };
        module.items.iter().for_each(|item| visitor.visit_item(item));
    }
    mentions
}

struct Visitor<'a> {
    module: usize,
    is_test: bool,
    mentions: &'a mut Vec<Mention>,
}

impl Visitor<'_> {
    fn note(&mut self, path: Vec<String>, line: usize) {
        // `pub(crate)` in a macro names nothing.
        if let [only] = &path[..]
            && ["crate", "self", "super"].contains(&only.as_str())
        {
            return;
        }
        self.mentions.push(Mention { module: self.module, path, line, is_test: self.is_test });
    }

    /// Visits a part of the code, which may be compiled for tests only.
    fn within(&mut self, is_for_tests: bool, visit: impl FnOnce(&mut Self)) {
        let outside = self.is_test;
        self.is_test |= is_for_tests;
        visit(self);
        self.is_test = outside;
    }

    /// Notes the paths in a macro's tokens: all, or those that name the crate.
    fn scan(&mut self, tokens: TokenStream, only_crate: bool) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        let end = |visitor: &mut Self, path: &mut Vec<String>, line: usize| {
            let path = std::mem::take(path);
            if path.first().is_some_and(|first| !only_crate || first == "crate") {
                visitor.note(path, line);
            }
        };
        for token in tokens {
            match token {
                TokenTree::Ident(identifier) => {
                    if colons != 2 {
                        end(self, &mut path, line);
                        line = identifier.span().start().line;
                    }
                    path.push(name(&identifier));
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    end(self, &mut path, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream(), only_crate);
                    }
                }
            }
        }
        end(self, &mut path, line);
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => {
                return self.within(is_for_tests(&item.attrs), |visitor| {
                    // A path in a rule means what it means where the macro is called, unless it begins at the crate.
                    visitor.scan(item.mac.tokens.clone(), item.mac.path.is_ident("macro_rules"));
                    visitor.visit_path(&item.mac.path);
                });
            }
            // Modules are visited for themselves.
            Item::Mod(_) => return,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        self.within(is_for_tests(attributes), |visitor| visit::visit_item(visitor, item));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if is_re_export(&item.vis) {
            return;
        }
        for import in imports(&item.tree) {
            self.note(import.path, import.line);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs[..],
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => &[],
        };
        self.within(is_for_tests(attributes), |visitor| visit::visit_impl_item(visitor, item));
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = if let TraitItem::Fn(item) = item { &item.attrs[..] } else { &[] };
        self.within(is_for_tests(attributes), |visitor| visit::visit_trait_item(visitor, item));
    }

    fn visit_field(&mut self, field: &'ast Field) {
        self.within(is_for_tests(&field.attrs), |visitor| visit::visit_field(visitor, field));
    }

    fn visit_field_value(&mut self, field: &'ast FieldValue) {
        self.within(is_for_tests(&field.attrs), |visitor| visit::visit_field_value(visitor, field));
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.within(is_for_tests(&variant.attrs), |visitor| visit::visit_variant(visitor, variant));
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        // An expression's attributes may belong to any part of it that begins where it does.
        let tokens = statement.to_token_stream();
        let mut first = tokens.into_iter();
        let is_for_tests = match (first.next(), first.next()) {
            (Some(TokenTree::Punct(hash)), Some(TokenTree::Group(group))) if hash.as_char() == '#' => {
                let written = format!("#[{}] mod a;", group.stream());
                syn::parse_str::<syn::ItemMod>(&written).is_ok_and(|item| is_for_tests(&item.attrs))
            }
            _ => false,
        };
        self.within(is_for_tests, |visitor| visit::visit_stmt(visitor, statement));
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.scan(call.tokens.clone(), false);
        visit::visit_macro(self, call);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let names = path.segments.iter().map(|segment| name(&segment.ident)).collect();
            self.note(names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }
}
