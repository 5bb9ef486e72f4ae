//! Ranks started by a launcher: who they are, and how they get the id of their communicator.
//!
//! [`Launch::from_env`] reads the variables that a launcher has set, and [`Launch::communicator`] does the rest: rank 0
//! creates the [`UniqueId`](libnccl::UniqueId), all ranks get it, and each joins.
//!
//! ```no_run
//! # fn main() -> libnccl_launch::Result<()> {
//! use libnccl::Nccl;
//! use libnccl_launch::Launch;
//!
//! let launch = Launch::from_env()?;
//! println!("rank {} of {}, by {}", launch.rank(), launch.size(), launch.launcher());
//! // The other ranks need not wait for one that has no library.
//! let nccl = Nccl::load().inspect_err(|error| launch.fail(error))?;
//! // On GPUs, first make device `launch.device(visible_devices)?` the current one of this thread.
//! let comm = launch.communicator(&nccl)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Launchers
//!
//! The first of these that is there is recognised:
//!
//! | launcher | by | rank, size, local rank, local size | where rank 0 is |
//! |---|---|---|---|
//! | `nccl run` | `LIBNCCL_RUN_ID` | as torchrun | this host |
//! | torchrun | `TORCHELASTIC_RUN_ID` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | torchrun's store at `MASTER_ADDR` and `MASTER_PORT`; without a store, rank 0 listens there |
//! | OpenMPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | MPICH, Intel MPI | `PMI_RANK` and `MPI_LOCALRANKID` | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | SLURM's `srun` | `SLURM_STEP_ID` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` at `SLURM_NODEID` | `MASTER_ADDR`, or the first of `SLURM_STEP_NODELIST`; `MASTER_PORT`, or one from 20000 to 29999 that depends on the step |
//! | LeaderWorkerSet | `LWS_GROUP_SIZE` | `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE`, 0, 1 | `MASTER_ADDR`, or `LWS_LEADER_ADDRESS`; `MASTER_PORT`, or 29500 |
//! | Kubeflow | `PET_NNODES` | `RANK` and `WORLD_SIZE` (v1) or `PET_NODE_RANK` and `PET_NNODES` (Trainer v2), 0, 1 | `MASTER_ADDR` and `MASTER_PORT`, or `PET_MASTER_ADDR` and `PET_MASTER_PORT` |
//! | JobSet | `JOB_COMPLETION_INDEX` | `JOB_COMPLETION_INDEX`, `WORLD_SIZE`, 0, 1 | `MASTER_ADDR`; `MASTER_PORT`, or 29500 |
//! | variables set by hand | `RANK` or `WORLD_SIZE` | as torchrun; 0 and 1 without the local ones | `MASTER_ADDR` and `MASTER_PORT` |
//!
//! A launcher that another one has started thus comes first: torchrun or `mpirun` in a SLURM job, torchrun in a pod. If
//! `RANK` and `WORLD_SIZE` are set beside those of the recognised launcher and differ, that is an error: one of them is
//! of an outer launcher. So is a program that a SLURM batch script starts without `srun`, of a job with several tasks.
//!
//! Two variables of this crate apply to every launcher:
//!
//! - `LIBNCCL_RENDEZVOUS`: a [`Rendezvous`] in place of the launcher's: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or
//!   `file:///DIRECTORY`.
//! - `LIBNCCL_JOB`: a text in place of the launcher's job id, for launchers that have none, and if several jobs share an
//!   address or a directory. Ranks with another text are refused.
//!
//! # Exchange
//!
//! Rank 0 listens on a TCP port while the exchange lasts, as NCCL itself then does. The others find it at a known address,
//! or where rank 0 publishes its address: a key of torchrun's store, or a file. They retry until the deadline, so that no
//! rank has to be the first. When all have joined, rank 0 sends the id to all of them. At its own deadline, and to a rank
//! that will wait no longer, it sends the missing ranks instead, which are in the errors.
//!
//! With the id, each rank begins to create its communicator, and reports to rank 0 that it has, or why it could not. A rank that
//! has failed before, by [`Launch::fail`] or as NCCL gives rank 0 no id, joins and reports too. Rank 0 sends the outcome to all,
//! and for up to 30 s to those that join only then: that all have begun, or the first failure, with which all end. Where only
//! the port tells the ranks of a job from others, a report before the id counts once no other rank has been missing for 5 s, and
//! not at all if another process joins as this rank before.
//!
//! Everything else on that port is refused, and reported by the crate log and in the error at the deadline:
//! what is no hello, or not whole within 5 s, ranks of another job, a second process with the same rank, another number
//! of ranks. Whoever does not know the job id, and the nonce where rank 0 publishes one, changes nothing but their own
//! connection; with them, they can join in place of ranks that have not, and so report their failure. As in NCCL's own bootstrap,
//! nothing is encrypted.
//! Rank 0 listens on all interfaces, or on `127.0.0.1` alone if all ranks are on its host, or on the IP address that
//! `MASTER_ADDR` or `LIBNCCL_RENDEZVOUS` gives. One that is not of its host is an error at once; `0.0.0.0`, for rank 0 alone,
//! means all interfaces.
//!
//! A message is `libnccl` and the version of the protocol, 4, in 8 bytes, then the length of a text, at most 4096, as a
//! little-endian number of 4 bytes, then the text. A rank sends a hello and a report. Rank 0 sends that the rank is accepted,
//! the id, and the outcome; or the missing ranks in place of one of the last two. To a rank of another version it sends
//! `refused-for-good` with the rank's version in the header: this message has the same form in all versions.
//!
//! | text | from | |
//! |---|---|---|
//! | `hello JOB ROOT NONCE RANK SIZE WAIT NAME` | a rank | hash of the job id (FNV-1a, 128 bits), nonce that rank 0 has published or 0, a new nonce: 32 hexadecimal digits each; the time in ms that the rank will wait; `=` and the name of the communicator, or `*` if no name is compared |
//! | `accepted`, `refused REASON`, `refused-for-good REASON` | rank 0 | after the last one, another attempt is in vain |
//! | `id ID` | rank 0 | 256 hexadecimal digits |
//! | `begun` | both | the rank has begun; all have begun |
//! | `failed RANK REASON` | both | a rank has failed; the reason has at most 1024 bytes |
//! | `missing COUNT RANK...` | rank 0 | the first 32 missing ranks |

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

mod announcement;
mod client;
#[doc(hidden)] // Also that of the client of NCCL's RAS service.
pub mod connection;
mod directory;
mod environment;
mod error;
mod exchange;
mod job;
mod listen;
mod process;
mod rendezvous;
mod root;
mod tcp_store;
mod wire;

pub use environment::Launcher;
#[doc(hidden)]
pub use environment::RUN_ID;
pub use error::{LaunchError, Result};
pub use process::Launch;
pub use rendezvous::Rendezvous;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
