//! Real processes with the variables of each launcher. Each finishes with a correct `all_reduce`.

use std::net::TcpListener;
use std::process::Command;

use crate::environments::entries;
use crate::rank_process::{self, ARGUMENTS, LONG, Rank, Variables, at, free_port, manual, start};
use crate::store_server::{Release, StoreServer};

/// Starts two ranks, and expects the launcher and the sum of each.
#[track_caller]
fn check(launcher: &str, variables: impl Fn(&str, usize) -> Variables) {
    let directory = tempfile::tempdir().unwrap();
    let directory_name = directory.path().to_str().unwrap();
    let of_rank = |rank| {
        let mut variables = variables(directory_name, rank);
        variables.push(("TMPDIR", directory_name.into()));
        variables
    };
    let ranks = [0, 1].map(|rank| start(LONG, &of_rank(rank)));
    for rank in ranks {
        assert_eq!(rank.end(), Ok(format!("{launcher}: sum 3")));
    }
    let left: Vec<_> = directory.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The variables of launchers. A value may be `%rank`, `%port` for a free port, `%used` for a port that is in use, or `%process`
/// for the id of this process: it makes the id of the SLURM job, and thus its port, unique.
const TABLES: [(&str, &str); 11] = [
    ("RANK and WORLD_SIZE", "RANK=%rank WORLD_SIZE=2 LOCAL_RANK=%rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=%port"),
    // On one host, with a directory.
    (
        "OpenMPI",
        "OMPI_COMM_WORLD_RANK=%rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=%rank OMPI_COMM_WORLD_LOCAL_SIZE=2
        PMIX_NAMESPACE=1266155521",
    ),
    ("MPICH", "PMI_RANK=%rank PMI_SIZE=2 MPI_LOCALRANKID=%rank MPI_LOCALNRANKS=2"),
    ("MPICH", "PMI_RANK=%rank PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=localhost MASTER_PORT=%port"),
    (
        "SLURM",
        "SLURM_PROCID=%rank SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=%rank SLURM_STEP_TASKS_PER_NODE=1(x2)
        SLURM_STEP_NODELIST=localhost,node[1-3] SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=%process SLURM_STEP_ID=1",
    ),
    ("LeaderWorkerSet", "LWS_LEADER_ADDRESS=localhost LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=%rank MASTER_PORT=%port"),
    (
        "Kubeflow",
        "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=%rank PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=%port
        JOB_COMPLETION_INDEX=%rank",
    ),
    (
        "Kubeflow",
        "RANK=%rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%port PET_NNODES=2 PET_NPROC_PER_NODE=1",
    ),
    ("JobSet", "JOB_COMPLETION_INDEX=%rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%port"),
    // Without a store, torchrun's port is free. The port of `nccl run` is in use, as if PyTorch listened there.
    (
        "torchrun",
        "RANK=%rank WORLD_SIZE=2 LOCAL_RANK=%rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%port
        TORCHELASTIC_RUN_ID=run-7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=False GROUP_WORLD_SIZE=1",
    ),
    (
        "nccl run",
        "RANK=%rank WORLD_SIZE=2 LOCAL_RANK=%rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%used LIBNCCL_RUN_ID=f00d",
    ),
];

#[test]
fn ranks_of_each_launcher_join() {
    for (launcher, table) in TABLES {
        let (port, in_use) = (free_port(), TcpListener::bind("127.0.0.1:0").unwrap());
        let used = in_use.local_addr().unwrap().port();
        check(launcher, |_, rank| {
            let value = |value: &str| match value {
                "%rank" => rank.to_string(),
                "%port" => port.to_string(),
                "%used" => used.to_string(),
                "%process" => std::process::id().to_string(),
                _ => value.into(),
            };
            entries(table).map(|(name, text)| (name, value(text))).collect()
        });
    }
}

fn torchrun(rank: usize, port: u16) -> Variables {
    let mut variables = manual(rank, 2, port);
    variables.extend([
        ("TORCHELASTIC_RUN_ID", "run-7".into()),
        ("TORCHELASTIC_RESTART_COUNT", "2".into()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
        ("GROUP_WORLD_SIZE", "1".into()),
    ]);
    variables
}

#[test]
fn torchrun_with_a_store_uses_one_key_of_it() {
    for release in [Release::WithPing, Release::WithoutPing] {
        let store = StoreServer::start(release);
        store.set("/default_pg/0//cuda//0", "of PyTorch");
        check("torchrun", |_, rank| torchrun(rank, store.port));
        assert_eq!(store.history(), ["/libnccl/torchrun/run-7/2/address"]);
        assert_eq!(store.keys(), ["/default_pg/0//cuda//0"]);
    }
}

/// Agents count restarts separately, so the counts are not part of the key.
#[test]
fn torchrun_agents_with_other_restart_counts_agree() {
    let store = StoreServer::start(Release::WithPing);
    check("torchrun", |_, rank| {
        let mut variables = torchrun(rank, store.port);
        variables.retain(|(name, _)| !matches!(*name, "TORCHELASTIC_RESTART_COUNT" | "GROUP_WORLD_SIZE"));
        variables
            .extend([("TORCHELASTIC_RESTART_COUNT", rank.to_string()), ("GROUP_WORLD_SIZE", "2".into())]);
        variables
    });
    assert_eq!(store.history(), ["/libnccl/torchrun/run-7/address"]);
}

#[test]
fn given_directory_is_used_and_left_empty() {
    check("RANK and WORLD_SIZE", |directory, rank| at(format!("file://{directory}"), rank));
}

#[test]
fn given_store_is_used() {
    let store = StoreServer::start(Release::WithPing);
    let rendezvous = format!("tcpstore://localhost:{}", store.port);
    check("RANK and WORLD_SIZE", |_, rank| at(rendezvous.clone(), rank));
    assert_eq!(store.history(), ["/libnccl/job/7/address"]);
}

/// Starts this program as ranks of a launcher with these arguments.
fn start_by(launcher: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(launcher);
    command.args(arguments).arg(std::env::current_exe().unwrap()).args(ARGUMENTS);
    command.env("LIBNCCL_TEST_TIMEOUT", LONG.to_string());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let mut child = Rank(command.spawn().unwrap_or_else(|error| panic!("{launcher}: {error}")));
    let mut printed = String::new();
    std::io::Read::read_to_string(child.0.stdout.as_mut().unwrap(), &mut printed).unwrap();
    let status = child.0.wait().unwrap();
    assert!(status.success(), "{launcher}: {status}\n{printed}");
    printed
}

#[test]
#[ignore = "needs torchrun, of PyTorch 2.2 or newer"]
fn torchrun_itself() {
    for arguments in [
        // With torchrun's store, on a separate port and on the default port.
        &["--standalone", "--nproc-per-node=3", "--no-python"][..],
        &["--nproc-per-node=3", "--no-python"],
        &[
            "--nproc-per-node=3",
            "--no-python",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "--rdzv-id=a b",
        ],
    ] {
        let printed = start_by("torchrun", arguments);
        assert_eq!(printed.matches("torchrun: sum 6").count(), 3, "{arguments:?}\n{printed}");
    }
}

#[test]
#[ignore = "needs the mpirun of OpenMPI"]
fn mpirun_itself() {
    let printed = start_by("mpirun", &["--oversubscribe", "-n", "4"]);
    assert_eq!(printed.matches("OpenMPI: sum 10").count(), 4, "{printed}");
    let rendezvous = format!("LIBNCCL_RENDEZVOUS=tcp://127.0.0.1:{}", rank_process::free_port());
    let printed = start_by("mpirun", &["--oversubscribe", "-n", "4", "-x", &rendezvous]);
    assert_eq!(printed.matches("OpenMPI: sum 10").count(), 4, "{printed}");
}

#[test]
#[ignore = "needs the mpiexec.hydra of MPICH"]
fn mpiexec_itself() {
    let printed = start_by("mpiexec.hydra", &["-n", "4"]);
    assert_eq!(printed.matches("MPICH: sum 10").count(), 4, "{printed}");
}

#[test]
#[ignore = "needs the srun of SLURM, and a node that is up"]
fn srun_itself() {
    let printed = start_by("srun", &["--overcommit", "-n", "4"]);
    assert_eq!(printed.matches("SLURM: sum 10").count(), 4, "{printed}");
}
