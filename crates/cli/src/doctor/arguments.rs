//! The arguments of `nccl doctor`.

use std::path::PathBuf;

use clap::Args;
use libnccl::Version;

const HELP: &str = "\
Examples:
  nccl doctor                        what to do before a job starts here
  nccl doctor --json | jq .starts    for scripts; docs/doctor.md has the fields
  nccl doctor --library /opt/nccl/lib/libnccl.so.2
  nccl doctor --needs 2.27.3         in a script that needs functions of this release

Exit status:
  0    A job would start
  1    It would not, or not end well: there is a problem
  2    Invalid command line
  141  The reader of the output closed it, as in `nccl ... | head -1`";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Examine this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
    /// Take a library older than this release for a problem
    #[arg(long, value_name = "RELEASE")]
    pub(crate) needs: Option<Version>,
    /// Use this library in a process of its own, for the doctor
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) probe: Option<PathBuf>,
}
