use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use crate::value_parser::{MAX_RANKS, whole};

const HELP: &str = "\
Each rank gets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others. If one fails, \
the others get SIGTERM, and SIGKILL 10 s later. No process remains, however the program ends, except one that SIGKILL does not end \
within 20 s. LD_PRELOAD of the user comes before what --cpu adds.

Example:
  nccl run -n 4 --cpu=/tmp/cpu-nccl -- python3 train.py

Exit status:
  0    All ranks succeeded
  N    That of the first rank that failed; 128 and its number if a signal ended it
  1    A failure of nccl run itself
  2    Invalid command line
  141  The reader of the output closed it";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArguments {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    pub(crate) ranks: usize,
    /// Put the CPU backend of NCCL, and the stand-in for CUDA, before other libraries; from DIR, which
    /// `cargo xtask cpu-so DIR` makes; `nccl ras` finds the job unless `NCCL_RAS_ENABLE` is 0 [default: libnccl-cpu beside this program, or in ../lib, or the Python package `libnccl_cpu`]. The `=` may be a space before a
    /// DIR with a slash
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, value_hint = ValueHint::DirPath)]
    pub(crate) cpu: Option<Option<PathBuf>>,
    /// Write the output to `DIR/attempt_A/RANK/stdout.log` and `stderr.log` as well
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) log_dir: Option<PathBuf>,
    /// Start all ranks again if one fails, at most N times
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Give the ranks this program's own output, without prefixes: `nccl bench --processes` has one rank that prints
    #[arg(long, hide = true)]
    pub(crate) inherit: bool,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

impl RunArguments {
    /// Returns the folder of `--cpu`, and the program. Clap has the folder of `--cpu DIR` as the program, which no folder is; but a
    /// word without a slash is the name of a program, wherever that is.
    pub(super) fn cpu_and_program(&self) -> (Option<Option<&Path>>, &[OsString]) {
        let cpu = self.cpu.as_ref().map(Option::as_deref);
        let is_folder = |word: &OsString| word.as_bytes().contains(&b'/') && Path::new(word).is_dir();
        match &self.program[..] {
            [folder, rest @ ..] if cpu == Some(None) && is_folder(folder) => {
                let program = rest.strip_prefix(&["--".into()]).unwrap_or(rest);
                (Some(Some(Path::new(folder))), program)
            }
            program => (cpu, program),
        }
    }
}
