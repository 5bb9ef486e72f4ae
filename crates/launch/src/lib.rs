//! Ranks started by a launcher: reads their rank and size, and exchanges the id of their communicator.
//!
#![doc = include_str!("../README.md")]
//!
//! # Launchers
//!
//! The first launcher in this table whose variable is set is used:
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
//! | manually set variables | `RANK` or `WORLD_SIZE` | as torchrun; 0 and 1 without the local ones | `MASTER_ADDR` and `MASTER_PORT` |
//!
//! A nested launcher thus has precedence: torchrun or `mpirun` in a SLURM job, torchrun in a pod. It is an error if `RANK` and
//! `WORLD_SIZE` are also set but differ from the launcher's rank and size. It is also an error if the batch script of a SLURM job
//! with several tasks starts the program without `srun`.
//!
//! With every launcher, `LIBNCCL_RENDEZVOUS` overrides the [`Rendezvous`]: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or
//! `file:///DIRECTORY`. `LIBNCCL_JOB` overrides the job id, for launchers that have none, and for several jobs that share an
//! address or a directory. Ranks with another id are refused.
//!
//! # Exchange
//!
//! Rank 0 listens on a TCP port during the exchange. The others connect to a fixed address, or to the address that rank 0
//! publishes in torchrun's store or in a file. They retry until the deadline, so any rank may start first. When all have
//! joined, rank 0 sends them the id. At the deadline of rank 0 or of another rank, it sends the missing ranks instead.
//!
//! With the id, each rank begins to create its communicator, and reports to rank 0 whether it could. A rank that failed
//! earlier, by [`Launch::fail`] or because NCCL returned no id to rank 0, joins and reports too. Rank 0 sends the outcome to all
//! ranks, and for up to 30 s to ranks that join later. The outcome is that all have begun, or the first failure, with which all
//! ranks fail. If only the port identifies the job, a failure reported before the id counts after 5 s in which no other rank was
//! missing, and is ignored if another process joins as this rank earlier.
//!
//! Rank 0 refuses all other connections, logs a warning, and names them in its error at the deadline, with the reason: no
//! complete hello within 5 s, another job, a second process with the same rank, or another number of ranks. A process needs the job id, and the nonce if rank 0 publishes one, to affect other connections. With them, it can join
//! instead of a rank that has not joined yet, or report its failure. As in NCCL's bootstrap, nothing is encrypted.
//!
//! Rank 0 listens on all interfaces, or on `127.0.0.1` if all ranks are on its host, or on the IP address in `MASTER_ADDR` or
//! `LIBNCCL_RENDEZVOUS`. An address of another host is an error; `0.0.0.0`, for rank 0 alone, means all interfaces.
//!
//! A message has a header of 8 bytes (`libnccl` and the protocol version, 4), the length of a text (at most 4096) as a
//! little-endian number of 4 bytes, and the text. A rank sends a hello and a report. Rank 0 sends `accepted`, the id, and the
//! outcome; the missing ranks may replace the id or the outcome. To a rank with another protocol version, it sends
//! `refused-for-good` with the rank's version in the header: this message has the same form in all versions.
//!
//! | text | from | |
//! |---|---|---|
//! | `hello JOB ROOT NONCE RANK SIZE WAIT NAME` | a rank | hash of the job id (FNV-1a, 128 bits), nonce that rank 0 has published or 0, a new nonce: 32 hexadecimal digits each; the time in ms that the rank will wait; `=` and the name of the communicator, or `*` if no name is compared |
//! | `accepted`, `refused REASON`, `refused-for-good REASON` | rank 0 | after `refused-for-good`, another attempt would fail too |
//! | `id ID` | rank 0 | 256 hexadecimal digits |
//! | `begun` | both | the rank has begun; all have begun |
//! | `failed RANK REASON` | both | a rank has failed; the reason has at most 1024 bytes |
//! | `missing COUNT RANK...` | rank 0 | the first 32 missing ranks |

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
