//! Rank, size and unique id for the processes that a launcher starts.
//!
#![doc = include_str!("../README.md")]
//!
//! # Launchers
//!
//! The launcher is the first one in this table whose variable is set:
//!
//! | launcher | recognized by | rank, size, local rank, local size | address of rank 0 |
//! |---|---|---|---|
//! | `nccl run` | `LIBNCCL_RUN_ID` | as torchrun | this host |
//! | torchrun | `TORCHELASTIC_RUN_ID` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | torchrun's store at `MASTER_ADDR` and `MASTER_PORT`; without a store, rank 0 listens there |
//! | OpenMPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | MPICH, Intel MPI | `PMI_RANK`; in a SLURM step, `MPI_LOCALRANKID` must also be set | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `MASTER_ADDR` and `MASTER_PORT`, or this host |
//! | SLURM's `srun` | `SLURM_STEP_ID` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, entry `SLURM_NODEID` of `SLURM_STEP_TASKS_PER_NODE` | `MASTER_ADDR`, or the first node of `SLURM_STEP_NODELIST`; `MASTER_PORT`, or a port from 20000 to 29999 that depends on the step |
//! | LeaderWorkerSet | `LWS_GROUP_SIZE` | `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE`, 0, 1 | `MASTER_ADDR`, or `LWS_LEADER_ADDRESS`; `MASTER_PORT`, or 29500 |
//! | Kubeflow | `PET_NNODES` | `RANK` and `WORLD_SIZE` (v1) or `PET_NODE_RANK` and `PET_NNODES` (Trainer v2), 0, 1 | `MASTER_ADDR` and `MASTER_PORT`, or `PET_MASTER_ADDR` and `PET_MASTER_PORT` |
//! | JobSet | `JOB_COMPLETION_INDEX` | `RANK` or `JOB_COMPLETION_INDEX`, `WORLD_SIZE`, 0, 1 | `MASTER_ADDR`; `MASTER_PORT`, or 29500 |
//! | manually set variables | `RANK` or `WORLD_SIZE` | `RANK`, `WORLD_SIZE`, 0, 1 | `MASTER_ADDR` and `MASTER_PORT` |
//!
//! In the last four rows, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` replace 0 and 1 if they are set. The order of the rows gives
//! precedence to the inner launcher, such as `mpirun` in a SLURM job. It is an error if `RANK` and `WORLD_SIZE` differ from the
//! launcher's rank and size, or if the batch script of a SLURM job with several tasks starts the program without a launcher.
//!
//! With every launcher, `LIBNCCL_RENDEZVOUS` overrides the [`Rendezvous`]: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or
//! `file:///DIRECTORY`. `LIBNCCL_JOB` overrides the job id: set it if the launcher has no job id, or if jobs share an address or
//! a directory. Rank 0 refuses ranks with a different job id.
//!
//! # Exchange
//!
//! Rank 0 listens on a TCP port during the exchange. The other ranks connect to a fixed address, or to the address that rank 0
//! publishes in torchrun's store or in a file. They retry until their [timeout](Launch::timeout), so any rank may start first.
//! When all have joined, rank 0 sends them the unique id. If ranks are missing when rank 0's own timeout expires, it sends a list
//! of them to the ranks that have joined. When another rank's timeout expires, rank 0 sends the list only to that rank.
//!
//! Each rank then begins to create its communicator, and reports to rank 0 whether this succeeded. A rank that calls
//! [`Launch::fail`] joins and reports its failure. Rank 0 sends the outcome to all ranks, including ranks that join up to 30 s
//! later. The outcome is either that all ranks have begun, or the first failure. The other ranks return this failure as an error.
//! If only the port identifies a job, any process can report a failure. Before it sends the id, rank 0 of such a job accepts a
//! report only 5 s after all ranks have joined, or when a timeout expires. Until then, another process can join as that rank.
//!
//! Rank 0 refuses a connection that sends no complete hello within 5 s. It also refuses a hello with a different job id, a
//! different number of ranks, or the rank of a process that has joined. It logs a warning for each refused connection, and lists
//! the reasons in its error at the timeout. With the job id and, if rank 0 publishes its address, the nonce next to it, a process
//! can join as a rank that has not joined yet, or report its failure. As in NCCL's bootstrap, nothing is encrypted.
//!
//! If `MASTER_ADDR` or `LIBNCCL_RENDEZVOUS` has an IP address, rank 0 listens on it; if it has a host name, rank 0 listens on all
//! interfaces. An address of another host is an error. The address can be `0.0.0.0` (all interfaces), but only on rank 0. If rank
//! 0 publishes its address, it listens on `127.0.0.1` if all ranks are on its host, otherwise on all interfaces.
//!
//! A message consists of a header, a length and a text. The header has 8 bytes: `libnccl`, and one byte with the protocol
//! version, which is 4. The length is a little-endian number of 4 bytes. The text has this length, at most 4096 bytes. A rank
//! sends `hello`, then `begun` or `failed`. Rank 0 sends `accepted`, `id`, and the outcome, `begun` or `failed`; `missing` may
//! replace `id` or the outcome. A rank with a different protocol version gets `refused-for-good`, with the rank's version in the
//! header. This message has the same form in all versions.
//!
//! | text | from | |
//! |---|---|---|
//! | `hello JOB ROOT NONCE RANK SIZE WAIT NAME` | a rank | `JOB`: hash of the job id (FNV-1a, 128 bits); `ROOT`: nonce that rank 0 has published, or 0; `NONCE`: a new nonce; 32 hexadecimal digits each. `WAIT`: the time in ms that the rank will wait; `NAME`: `=` and the communicator's name, or `*` if names are not compared |
//! | `accepted`, `refused REASON`, `refused-for-good REASON` | rank 0 | after `refused-for-good`, a further attempt would also fail |
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
