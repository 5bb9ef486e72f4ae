//! `docs/generated/environment.md`: the environment variables, from the constants that name them in the sources.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use syn::visit::Visit;

use crate::checkout::{self, rust_files};

const PAGE: &str = "docs/generated/environment.md";
/// The most variables that a user may have to know.
const MOST: usize = 30;
/// Those that read variables, by the folder of their sources.
const READERS: [(&str, &str); 11] = [
    ("build", "the build of `libnccl`"),
    ("src", "`libnccl`"),
    ("crates/launch/src", "`libnccl-launch`"),
    ("crates/observe/src", "`libnccl-observe`, `libnccl-trace`"),
    ("crates/cpu/src", "`libnccl-cpu`"),
    ("cuda-emulation/common/src", "`libnccl-cpu`, the CUDA emulation"),
    ("cuda-emulation/driver/src", "the CUDA emulation"),
    ("cuda-emulation/runtime/src", "the CUDA emulation"),
    ("crates/trace/src", "`libnccl-trace`"),
    ("crates/cli/src", "`nccl`"),
    ("xtask/src", "`cargo xtask`, `.ci/run`"),
];
const TOP: &str = "# Environment variables

Those of this project: each is a constant in the sources, whose documentation this page has. `cargo xtask environment` writes it.
Those of NCCL itself are in [its documentation](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html); `nccl env`
prints what a library reads. [A table](../no-gpu.md#variables) lists CUDA's variables and whether the CUDA emulation obeys them.
Tests have their own, `LIBNCCL_TEST_*`, each described where it is read.

| variable | what | default | read by |
|---|---|---|---|
";
const INTERNAL: &str = "
Set by the tool `nccl` for the processes that it starts, and not to be set by anybody else:

| variable | what | read by |
|---|---|---|
";

/// The variables of one file: each name with the documentation of its constant.
#[derive(Default)]
struct Variables(Vec<(String, String)>);

impl<'ast> Visit<'ast> for Variables {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. }) = &*item.expr
            && name.value().starts_with("LIBNCCL_")
        {
            self.0.push((name.value(), documentation(&item.attrs)));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // Tests have their own.
        if !item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")) {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

fn documentation(attributes: &[syn::Attribute]) -> String {
    let line = |attribute: &syn::Attribute| match &attribute.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) => Some(line.value().trim().to_owned()),
        _ => None,
    };
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
        .filter_map(line)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Writes the page, or with `check` fails if the committed page differs.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    checkout::write_or_check(PAGE, &page(root)?, check, "environment")
}

fn page(root: &Path) -> Result<String> {
    let mut rows = BTreeMap::new();
    let mut internal = BTreeMap::new();
    for (folder, reader) in READERS {
        for file in rust_files(&root.join(folder))? {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let mut variables = Variables::default();
            variables.visit_file(&syn::parse_file(&text).with_context(|| format!("{}", file.display()))?);
            for (name, about) in
                variables.0.into_iter().filter(|(name, _)| !name.starts_with("LIBNCCL_TEST_"))
            {
                let place = file.strip_prefix(root).unwrap_or(&file).display();
                ensure!(!about.is_empty(), "{place}: {name} is not documented");
                let known = match about.split_once(" Default: ") {
                    Some((what, default)) => {
                        let default = default.trim_end_matches('.');
                        rows.insert(name.clone(), format!("| `{name}` | {what} | {default} | {reader} |\n"))
                    }
                    None => internal.insert(name.clone(), format!("| `{name}` | {about} | {reader} |\n")),
                };
                ensure!(known.is_none(), "{place}: {name} is also a constant elsewhere");
            }
        }
    }
    ensure!(rows.len() <= MOST, "{} variables; expected at most {MOST} that a user meets", rows.len());
    let mut page = TOP.to_owned();
    rows.values().try_for_each(|row| page.write_str(row))?;
    page.push_str(INTERNAL);
    internal.values().try_for_each(|row| page.write_str(row))?;
    Ok(page)
}
