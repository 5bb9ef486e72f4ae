//! Rank, size and unique id for the processes that a launcher starts.
//!
#![doc = include_str!("../README.md")]
//!
//! # Launchers
//!
//! The first launcher in this table whose variable is set is used:
//!
//! | launcher | recognized by | rank, size, local rank, local size | address of rank 0 |
//! |---|---|---|---|
//! | `nccl run` | `LIBNCCL_RUN_ID` | as torchrun | this host |
//! | torchrun | `TORCHELASTIC_RUN_ID` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | torchrun's store at `MASTER_ADDR` and `MASTER_PORT`; without a store, rank 0 listens there |
//! | OpenMPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | MPICH, Intel MPI | `PMI_RANK`; in a SLURM step, `MPI_LOCALRANKID` too | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | SLURM's `srun` | `SLURM_STEP_ID` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, entry `SLURM_NODEID` of `SLURM_STEP_TASKS_PER_NODE` | `MASTER_ADDR`, or the first of `SLURM_STEP_NODELIST`; `MASTER_PORT`, or one from 20000 to 29999 that depends on the step |
//! | LeaderWorkerSet | `LWS_GROUP_SIZE` | `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE`, 0, 1 | `MASTER_ADDR`, or `LWS_LEADER_ADDRESS`; `MASTER_PORT`, or 29500 |
//! | Kubeflow | `PET_NNODES` | `RANK` and `WORLD_SIZE` (v1) or `PET_NODE_RANK` and `PET_NNODES` (Trainer v2), 0, 1 | `MASTER_ADDR` and `MASTER_PORT`, or `PET_MASTER_ADDR` and `PET_MASTER_PORT` |
//! | JobSet | `JOB_COMPLETION_INDEX` | `RANK` or `JOB_COMPLETION_INDEX`, `WORLD_SIZE`, 0, 1 | `MASTER_ADDR`; `MASTER_PORT`, or 29500 |
//! | manually set variables | `RANK` or `WORLD_SIZE` | `RANK`, `WORLD_SIZE`, 0, 1 | `MASTER_ADDR` and `MASTER_PORT` |
//!
//! In the last four rows, `LOCAL_RANK` and `LOCAL_WORLD_SIZE`, if set, replace 0 and 1. The order gives the inner launcher
//! precedence: torchrun or `mpirun` in a SLURM job, torchrun in a pod. It is an error if `RANK` and `WORLD_SIZE` differ from the
//! launcher's rank and size, or if the batch script of a SLURM job with several tasks starts the program without `srun`.
//!
//! With every launcher, `LIBNCCL_RENDEZVOUS` overrides the [`Rendezvous`]: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or
//! `file:///DIRECTORY`. `LIBNCCL_JOB` overrides the job id: set it if the launcher has none, or if jobs share an address or a
//! directory. Rank 0 refuses ranks with another job id.
//!
//! # Exchange
//!
//! Rank 0 listens on a TCP port during the exchange. The others connect to a fixed address, or to the address that rank 0
//! publishes in torchrun's store or in a file. They retry until their [timeout](Launch::timeout), so any rank may start first.
//! When all have joined, rank 0 sends them the unique id. If ranks are missing at its own timeout, it sends a list of the missing
//! ranks to those that have joined; at the timeout of another rank, only to that rank.
//!
//! With the id, each rank begins to create its communicator, and reports to rank 0 whether it could. A rank that calls
//! [`Launch::fail`] joins and reports its failure. Rank 0 sends the outcome to all ranks, including ranks that join up to 30 s
//! later: all have begun, or the first failure, which the other ranks return as an error. If only the port identifies the job,
//! any process can report a failure. A failure reported before the id is sent then counts only after no rank has been missing
//! for 5 s; until then, another process can join as the rank that has failed.
//!
//! Rank 0 refuses all other connections, logs a warning for each, and lists them in its error at the timeout, with the reason: no
//! complete hello within 5 s, another job, a second process with the same rank, or another number of ranks. A process needs the
//! job id, and the nonce if rank 0 publishes one, to affect other connections. With them, it can join as a rank that has
//! not joined yet, or report that this rank has failed. As in NCCL's bootstrap, nothing is encrypted.
//!
//! Rank 0 listens on the IP address in `MASTER_ADDR` or `LIBNCCL_RENDEZVOUS`, or, with a name there, on all interfaces. An
//! address of another host is an error; `0.0.0.0`, for rank 0 alone, means all interfaces. If rank 0 publishes its address, it
//! listens on `127.0.0.1` if all ranks are on its host, otherwise on all interfaces.
//!
//! A message has a header of 8 bytes (`libnccl` and the protocol version, 4), the length of a text (at most 4096) as a
//! little-endian number of 4 bytes, and the text. A rank sends `hello`, then `begun` or `failed`. Rank 0 sends `accepted`, `id`,
//! and the outcome, `begun` or `failed`; `missing` may replace `id` or the outcome. To a rank with another protocol version, it
//! sends `refused-for-good` with the rank's version in the header: this message has the same form in all versions.
//!
//! | text | from | |
//! |---|---|---|
//! | `hello JOB ROOT NONCE RANK SIZE WAIT NAME` | a rank | hash of the job id (FNV-1a, 128 bits), nonce that rank 0 has published or 0, a new nonce: 32 hexadecimal digits each; the time in ms that the rank will wait; `=` and the name of the communicator, or `*` if no name is compared |
//! | `accepted`, `refused REASON`, `refused-for-good REASON` | rank 0 | after `refused-for-good`, another attempt would fail too |
//! | `id ID` | rank 0 | 256 hexadecimal digits |
//! | `begun` | both | from a rank: it has begun; from rank 0: all have begun |
//! | `failed RANK REASON` | both | a rank has failed; the reason has at most 1024 bytes |
//! | `missing COUNT RANK...` | rank 0 | the number of missing ranks, and the first 32 of them |

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

mod announcement;
#[doc(hidden)] // Also used by the client of NCCL's RAS service.
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

#[doc(hidden)]
pub use environment::RUN_ID;
pub use error::{LaunchError, Result};
pub use job::Launcher;
pub use process::Launch;
pub use rendezvous::Rendezvous;
