//! Runs `nccl` as a user does.

mod bench;
mod bench_output;
mod common;
mod compare;
mod cuda_emulation;
mod doctor;
mod escapes;
mod help;
mod pairs;
mod processes;
mod random_files;
mod ras;
mod ras_reports;
mod recorder;
mod recorder_directory;
mod recorder_live;
mod recorder_pytorch;
mod recordings;
mod results;
mod run;
mod set_uid;
mod snapshot;
mod trace;
