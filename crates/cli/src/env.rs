//! `nccl env`: the variables that the library reads, their values and where these come from.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use libnccl::{Backend, Nccl};
use serde::Serialize;

use crate::nccl_file::{KNOWN, NcclFile, Variables};
use crate::settings::{Setting, Settings};
use crate::system::System;
use crate::{library, output};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/env.txt").trim_end())]
pub(crate) struct EnvArguments {
    /// Part of the names to list, in any case
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
}

/// A variable. The field names are also the names in the JSON.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Variable {
    name: String,
    /// The value; `null` for an unknown default.
    value: Option<String>,
    /// `environment`, the path of a configuration file, or `default`.
    origin: String,
    /// True if the library reads it.
    known: bool,
}

pub(crate) fn run(arguments: &EnvArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let nccl = library::find(arguments.library.as_deref())?;
    let file = match nccl.as_ref().map(Nccl::backend) {
        Some(Backend::Loaded { path, .. } | Backend::Linked { path: Some(path) }) => NcclFile::read(path),
        _ => None,
    };
    let release = KNOWN.release()?;
    let (title, known) = match &nccl {
        Some(nccl) => {
            let title = format!("NCCL {}, {}", nccl.version(), nccl.backend());
            (title, Variables::of(file.as_ref().unwrap_or(&NcclFile::default())).names)
        }
        None => {
            let newest = format!("NCCL {release}, the newest version that this program lists");
            let title = format!("no NCCL library found: the variables of {newest}");
            (title, KNOWN.defaults.keys().cloned().collect())
        }
    };
    let settings = Settings::of(&System::here());
    // NCCL 2.30.4 and newer report the defaults of unset variables.
    let parameters = nccl.as_ref().and_then(|nccl| nccl.parameters().ok());
    // Other implementations may report the same version with other defaults. Their files lack this text.
    let is_newest = nccl.is_none() || file.is_some_and(|file| file.version == Some(release));
    let default = |name: &str| {
        let reported = parameters.as_ref().and_then(|parameters| {
            // NCCL's text for the level if logging is off.
            let text = parameters.get::<String>(name).ok().flatten().filter(|text| text != "<unknown>");
            text.or_else(|| parameters.get::<i64>(name).ok().flatten().map(|value| value.to_string()))
        });
        reported.or_else(|| KNOWN.defaults.get(name).filter(|_| is_newest)?.clone())
    };
    let variable = |name: &str| {
        let (value, origin) = match settings.get(name) {
            Some(Setting { value, origin }) => (Some(value.clone()), origin.to_string()),
            None => (default(name), "default".into()),
        };
        Variable { name: name.into(), value, origin, known: known.contains(name) }
    };
    let names: BTreeSet<&str> =
        known.iter().map(String::as_str).chain(settings.iter().map(|(name, _)| name)).collect();
    let filter = arguments.filter.as_deref().unwrap_or_default().to_ascii_uppercase();
    let variables: Vec<_> = names.into_iter().filter(|name| name.contains(&filter)).map(variable).collect();
    if arguments.json {
        if nccl.is_none() {
            output::write_to_stderr(&format!("{title}\n"));
        }
        output::print_json(&variables)?;
    } else {
        print(&mut output::stdout(), &title, &variables)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, title: &str, variables: &[Variable]) -> std::io::Result<()> {
    writeln!(out, "# {title}")?;
    if variables.iter().any(|variable| variable.value.is_none()) {
        writeln!(out, "# ?: not set, and its default is not known")?;
    }
    for Variable { name, value, origin, known } in variables {
        let value = output::in_line(value.as_deref().unwrap_or("?"));
        let unknown = if *known { "" } else { "; unknown to this version" };
        writeln!(out, "{name}={value}  ({origin}{unknown})")?;
    }
    Ok(())
}
