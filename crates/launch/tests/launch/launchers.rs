//! Real processes with the variables of each launcher. Each finishes with a correct `all_reduce`.

use std::net::TcpListener;
use std::process::Command;

use crate::environments::entries;
use crate::rank_process::{self, ARGUMENTS, LONG, Rank, Variables, free_port, manual, start};
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

#[test]
fn ranks_of_each_launcher_join() {
    let tables = include_str!("launchers.txt").lines().filter_map(|line| line.split_once(": "));
    for (launcher, table) in tables.filter(|(launcher, _)| !launcher.starts_with('#')) {
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

#[test]
fn store_has_one_key_of_torchrun() {
    let torchrun = |rank: usize, port, restarts: usize, nodes: usize| {
        let mut variables = manual(rank, 2, port);
        variables.extend([
            ("TORCHELASTIC_RUN_ID", "run-7".into()),
            ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
            ("GROUP_WORLD_SIZE", nodes.to_string()),
        ]);
        variables
    };
    for release in [Release::WithPing, Release::WithoutPing] {
        let store = StoreServer::start(release);
        store.set("/default_pg/0//cuda//0", "of PyTorch");
        check("torchrun", |_, rank| torchrun(rank, store.port, 2, 1));
        assert_eq!(store.history(), ["/libnccl/torchrun/run-7/2/address"]);
        assert_eq!(store.keys(), ["/default_pg/0//cuda//0"]);
    }
    // Agents count restarts separately, so the counts are not part of the key.
    let store = StoreServer::start(Release::WithPing);
    check("torchrun", |_, rank| torchrun(rank, store.port, rank, 2));
    assert_eq!(store.history(), ["/libnccl/torchrun/run-7/address"]);
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
#[ignore = "needs the srun of SLURM: tests/slurm"]
fn srun_itself() {
    let printed = start_by("srun", &["--overcommit", "-n", "4"]);
    assert_eq!(printed.matches("SLURM: sum 10").count(), 4, "{printed}");
}
