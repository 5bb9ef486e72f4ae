//! Ranks started by a launcher: who they are, and how they get the id of their communicator.
//!
#![doc = include_str!("../README.md")]
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
//! `RANK` and `WORLD_SIZE` are also set but differ from the rank and size of the launcher, that is an error. So is a program
//! that a SLURM batch script of a job with several tasks starts without `srun`.
//!
//! With every launcher, `LIBNCCL_RENDEZVOUS` sets another [`Rendezvous`]: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or
//! `file:///DIRECTORY`. `LIBNCCL_JOB` sets another job id, for launchers that have none, and for several jobs that share an
//! address or a directory. Ranks with another id are refused.
//!
//! # Exchange
//!
//! Rank 0 listens on a TCP port during the exchange. The others find it at a known address, or where rank 0 publishes its
//! address: in torchrun's store, or in a file. They retry until the deadline, so any rank may start first. When all have
//! joined, rank 0 sends them the id. At the deadline of rank 0 or of another rank, it sends the missing ranks instead.
//!
//! With the id, each rank begins to create its communicator, and reports to rank 0 whether it could. A rank that has failed
//! before, by [`Launch::fail`] or because NCCL gives rank 0 no id, joins and reports too. Rank 0 sends the outcome to all, and
//! for up to 30 s to ranks that join later: all have begun, or the first failure, with which all fail. If only the port
//! identifies the job, a report before the id counts after 5 s in which no other rank was missing, and not at all if another
//! process joins as this rank before.
//!
//! Rank 0 refuses all other connections, with a warning of the crate log, and names them in its error at the deadline: no whole
//! hello within 5 s, another job, a second process with the same rank, another number of ranks. Without the job id, and the
//! nonce if rank 0 publishes one, a process has no effect on other connections. With them, it can join in place of a rank that
//! has not, or report its failure. As in NCCL's bootstrap, nothing is encrypted.
//!
//! Rank 0 listens on all interfaces, or on `127.0.0.1` if all ranks are on its host, or on the IP address in `MASTER_ADDR` or
//! `LIBNCCL_RENDEZVOUS`. An address of another host is an error; `0.0.0.0`, for rank 0 alone, means all interfaces.
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

#[doc(hidden)]
pub use environment::RUN_ID;
pub use error::{LaunchError, Result};
pub use job::Launcher;
pub use process::Launch;
pub use rendezvous::Rendezvous;
